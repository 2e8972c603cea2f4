"""All that one call of the loop works on."""

from typing import Annotated, NamedTuple

from loadslice.policy.kernel import by_reference
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.sim.clients import Behaviour, Diary
from loadslice.sim.clockwork import Clockwork
from loadslice.sim.energy import Energy
from loadslice.sim.faults import FAULT_COLUMNS
from loadslice.sim.record import Record, Traffic
from loadslice.sim.service import Service


@by_reference
class Scene(NamedTuple):
    """One pointer to compiled code: of ten, most would lie on the stack and be fetched from there at every use."""

    tables: Tables
    """What never changes"""
    state: State
    """Fresh, or as the part before left it; idle again after the last part"""
    service: Service
    """Service-time distributions"""
    energy: Energy
    """Energy of batches, where it was measured"""
    traffic: Traffic
    """Requests"""
    faults: Annotated[Int64s, FAULT_COLUMNS]
    """[changes, FAULT_COLUMNS] in order of time"""
    behaviour: Behaviour
    """Clients"""
    diary: Diary
    """From `clients.empty_diary`; changed"""
    clockwork: Clockwork
    """From `idle_clockwork`; changed"""
    record: Record
    """Filled"""
