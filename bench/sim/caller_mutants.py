"""The mutants of what other programs see: callbacks, and the HTTP API."""

from __future__ import annotations

from bench.sim.mutation import Mutant

CALLERS: tuple[Mutant, ...] = (
    # --- callbacks ----------------------------------------------------------------------------------------------------
    Mutant(
        "told_by_any_answer", "whatever a receiver answers counts as heard",
        (("jobs.lifecycle.callbacks", "    if status is not None and 200 <= status < 300:\n", "    if status is not None:\n"),),
    ),
    Mutant(
        "callback_leases_without_end", "what a dead lane was telling is never told again",
        (("jobs.lifecycle.callbacks", " AND (leased_until IS NULL OR leased_until <= %(now)s)\n", " AND leased_until IS NULL\n"),),
        catcher="tests/test_callbacks_outbox.py",
    ),
    Mutant(
        "callbacks_to_the_inside", "a callback may go to what only this machine sees",
        (("providers.outside", "            by_name or is_public(address) or self._allowed.holds(address) for", "            True for"),),
        catcher="tests/test_callbacks_out.py tests/test_outside.py",
    ),
    # --- API ----------------------------------------------------------------------------------------------------------
    Mutant(
        "key_reused_for_another_body", "an idempotency key answers whatever body comes with it",
        (("jobs.lifecycle.keyed", "    if row.digest != order.digest:\n        raise KeyReusedError\n", ""),),
        catcher="tests/test_api_idempotency.py tests/test_api_codes.py",
    ),
    Mutant(
        "jobs_of_every_tenant", "a token reads the jobs of all tenants",
        (("jobs.api.reading", "    row = told.jobs_of(asking.tenant).filter(pk=job_id).first()\n",
          "    row = told.Job.objects.filter(pk=job_id).first()\n"),),
        catcher="tests/test_api_tokens.py tests/test_api_jobs.py",
    ),
)  # fmt: skip
