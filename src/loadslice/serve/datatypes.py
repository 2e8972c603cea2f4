"""Data types of the Open Inference Protocol, as the fronts call them."""

from loadslice.spec.datatypes import BYTES as BYTES
from loadslice.spec.datatypes import NUMPY as NUMPY
from loadslice.spec.datatypes import little_endian as little_endian
from loadslice.spec.datatypes import name_of as name_of
