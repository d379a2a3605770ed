"""A provider on this machine: it speaks the contracts of the real ones, bills, and misbehaves on demand.

`world.World` is the deterministic core (no clock, no sockets, no global random); `app.SandboxApp` carries its reactions
out over real connections; `server.running_sandbox` starts one for a test. docs/sandbox.md is the manual.
"""
