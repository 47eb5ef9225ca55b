"""The rules by what they look at; the numbered table is `topology.findings.table`."""
