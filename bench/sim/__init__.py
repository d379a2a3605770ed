"""The deterministic simulation behind `python -m bench.simulate`: one seed, one schedule.

The real engine, stages, policy, models and SQL run on a real PostgreSQL against the sandbox's world in the same process, on
a virtual clock. `turns` decides who moves, `network` carries requests and loses them, `desk` is the product under test,
`nemesis` breaks things, `staffing` acts at the worst moment, `judge` reads the provider's ledger and our rows.
"""
