"""The HTTP API for the studio's other programs, under /api/v1/. A view over the rows, as the admin is: whatever changes one
calls one verb of jobs/lifecycle/."""
