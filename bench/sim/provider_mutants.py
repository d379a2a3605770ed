"""The mutants of several providers: webhooks, answers that are the result, tokens, verdicts behind a further read."""

from __future__ import annotations

from bench.sim.mutation import Mutant

PROVIDERS: tuple[Mutant, ...] = (
    # --- webhooks -----------------------------------------------------------------------------------------------------
    Mutant(
        "nonce_not_compared", "anybody who knows a task's id may call about it",
        (("jobs.webhook_address", "    return provider in settings.WEBHOOKS and constant_time_compare(nonce, _nonce(provider, task_id))\n",
          "    return provider in settings.WEBHOOKS\n"),),
        catcher="tests/test_webhooks.py",
    ),
    Mutant(
        "signature_not_checked", "what nobody has signed gives a send an id",
        (("providers.webhooks", "        if fits(sealed, body, self._current(now)):\n", "        if self._current(now):\n"),),
        catcher="tests/test_webhooks.py",
    ),
    Mutant(
        "old_webhooks_heard", "what was signed an hour ago counts as said now",
        (("providers.webhooks", "> LONGEST_AGE_S:", "> 12 * LONGEST_AGE_S:"),),
        catcher="tests/test_webhooks.py tests/test_webhook_seals.py",
    ),
    Mutant(
        "hint_put_off_by_an_older_poll", "a poll that began before the hint puts the next one off",
        (("jobs.lifecycle.record", "    WHEN t.hinted_at >= coalesce(v.asked_at, v.at) THEN least(coalesce(t.next_poll_at, v.at), v.next_poll_at)\n", ""),),
        catcher="tests/test_webhooks.py",
    ),
    Mutant(
        "no_net_under_webhooks", "where a webhook is expected and lost, nobody asks for hours",
        (("jobs.stages.facts", "    return max(limits.webhook_poll_s, limits.poll_interval_s)\n", "    return 100 * limits.webhook_poll_s\n"),),
        catcher="tests/test_webhooks.py tests/test_webhooks_flow.py",
    ),
    # --- answers that are the result ----------------------------------------------------------------------------------
    Mutant(
        "answers_of_the_dead_unread", "what a dead lane had received of a paid call is left on its disk",
        (("jobs.stages.answers", "    found = list(answers.left())\n", "    found: list[Left] = []\n"),),
        catcher="tests/test_synchronous.py",
    ),
    Mutant(
        "answer_dropped_before_its_record", "the file of an answer goes before its fact is anywhere",
        (("jobs.engine", "        give_up_at = self.lane.clock.boot() + SPOOL_AFTER_S\n",
          "        await self._drop_answers(facts)\n        give_up_at = self.lane.clock.boot() + SPOOL_AFTER_S\n"),),
        catcher="tests/test_synchronous.py",
    ),
    Mutant(
        "short_deadline_for_long_calls", "a call whose answer is the result is given up after seconds",
        (("jobs.rules", "        return self.post_deadline_s if adapter.asynchronous else self.sync_deadline_s\n",
          "        return self.post_deadline_s\n"),),
        catcher="tests/test_synchronous.py",
    ),
    Mutant(
        "resend_beside_an_unread_disk", "by a standing decision one sends again while the answer lies on a host that is away",
        (("jobs.policy", "            and task.spool_clear\n", ""),),
        catcher="tests/test_synchronous.py tests/test_policy.py",
    ),
    # --- adapters -----------------------------------------------------------------------------------------------------
    Mutant(
        "completed_with_an_error_is_success", "fal's COMPLETED beside an error is taken for a picture",
        (("providers.adapters.fal", '            if not (document.get("error") or document.get("error_type")):\n', "            if True:\n"),),
        catcher="tests/test_fal.py",
    ),
    Mutant(
        "links_followed_anywhere", "the key goes to whatever address an answer names",
        (("providers.adapters.fal", '    if told.startswith(f"{account.base_url}/") and f"/{asked}" in told:\n', "    if told:\n"),),
        catcher="tests/test_fal.py",
    ),
    Mutant(
        "key_follows_a_redirect", "the headers that open a file reach another server",
        (("providers.http", "                    **(account_headers if _origin(url) == home else {}),\n",
          "                    **account_headers,\n"),),
        catcher="tests/test_http.py",
    ),
    Mutant(
        "begun_and_broken_is_free", "OpenRouter's error after the start is taken for a refusal",
        (("providers.adapters.openrouter", "    if provider_id is not None:\n        # Begun,", "    if provider_id is None:\n        # Begun,"),),
        catcher="tests/test_openrouter.py",
    ),
    Mutant(
        "everybody_asks_for_a_token", "each process gets a token of its own",
        (("providers.tokens", "                if mine:\n                    # It may", "                if True:\n                    # It may"),
         ("providers.tokens", "                    known = _usable(path)\n                    return known or await", "                    return await")),
        catcher="tests/test_tokens.py",
    ),
)  # fmt: skip
