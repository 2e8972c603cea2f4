"""The report as one self-contained HTML page: no scripts, no network, readable on a phone and on paper."""
