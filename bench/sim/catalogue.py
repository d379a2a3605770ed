"""The mutants: ways to lose money that the proof must notice. Each names what notices it."""

from __future__ import annotations

from bench.sim.caller_mutants import CALLERS
from bench.sim.desk_mutants import DESK
from bench.sim.mutation import Mutant
from bench.sim.provider_mutants import PROVIDERS

MUTANTS: tuple[Mutant, ...] = (
    # --- arming and sending -------------------------------------------------------------------------------------------
    Mutant(
        "arm_ignores_withdrawal", "an intent that was withdrawn meanwhile is armed and sent",
        (("jobs.lifecycle.arm", "  AND t.armed_at IS NULL AND t.unsent_at IS NULL\n", "  AND t.armed_at IS NULL\n"),
         ("jobs.lifecycle.arm", "AND t.blocks_send\n", "\n"),
         ("jobs.lifecycle.arm", "  AND j.state = 'active'\n", "")),
    ),
    Mutant(
        "arm_ignores_hold", "the red button does not stop what was claimed before it was pressed",
        (("jobs.lifecycle.arm", "  AND NOT EXISTS (SELECT 1 FROM jobs_hold WHERE lifted_at IS NULL)\n", ""),),
    ),
    Mutant(
        "arm_ignores_closed_target", "a target closed between claim and arm is sent to",
        (("jobs.lifecycle.arm", "  AND g.enabled AND g.stopped_at IS NULL\n", ""),),
    ),
    Mutant(
        "send_what_was_not_armed", "what the arming did not return is sent all the same",
        (("jobs.stages.submit", "        for i in intents\n        if i.task_id in armed\n    ], not_armed",
          "        for i in intents\n    ], not_armed"),),
    ),
    Mutant(
        "no_fence", "a lane that stood still for minutes sends what it had armed",
        (("providers.sending", "            if boot() >= send_not_after:\n                raise FencedError\n", ""),
         ("providers.http", "            if boot() >= send_not_after:\n                return _fenced(sending)\n", "")),
    ),
    Mutant(
        "second_post_after_a_reset", "the transport repeats a paid POST whose connection broke",
        (("providers.http",
          "            async with _deadline(deadline_s), self._paid_transport() as transport:\n"
          "                await self._exchange(transport, request, sending)\n",
          "            async with _deadline(deadline_s), self._paid_transport() as transport:\n"
          "                try:\n"
          "                    await self._exchange(transport, request, sending)\n"
          "                except httpx.ReadError:\n"
          "                    request.stream = httpx.ByteStream(content)\n"
          "                    await self._exchange(transport, request, sending)\n"),),
    ),
    Mutant(
        "reset_taken_for_a_refusal", "a broken connection counts as the provider's own refusal, free of charge",
        (("providers.adapters.polza", "            return classify(answer, rules=_rules(answer))\n        document",
          "            return Refusal(FailureClass.DOWN, Charge.NONE, answer.reason)\n        document"),),
        catcher="tests/test_polza.py",
    ),
    Mutant(
        "gateway_page_taken_for_a_refusal", "a proxy's error page counts as the provider's own refusal, free of charge",
        (("providers.adapters.polza", "            return _bare_refusal(answer)\n",
          "            return _bare_refusal(answer)\n"
          "        if answer.status >= 500:\n"
          "            return Refusal(FailureClass.DOWN, Charge.NONE, 'down')\n"),),
        catcher="tests/test_polza.py",
    ),
    # --- claiming -----------------------------------------------------------------------------------------------------
    Mutant(
        "claim_ignores_what_is_in_flight", "the limit counts only what is claimed at once",
        (("jobs.lifecycle.claim", "limits.concurrency - sum(by_target.values())", "limits.concurrency"),),
    ),
    Mutant(
        "budget_ignored", "a tenant's spending limit stops nothing",
        (("jobs.lifecycle.deal", "        return held is None\n", "        return held is held\n"),),
    ),
    Mutant(
        "unknown_sends_not_counted", "what may have been charged for a lost send is not counted in the budget",
        (("jobs.spending", "    AND (k.state = 'intent' OR", "    AND k.state <> 'unknown' AND (k.state = 'intent' OR"),),
    ),
    Mutant(
        "claim_ignores_the_targets_limit", "the target's own limit is forgotten",
        (("jobs.lifecycle.deal", "        if target.max_in_flight is None\n", "        if True\n"),),
    ),
    Mutant(
        "claim_within_a_block", "what a provider has blocked, or staff have paused, is claimed all the same",
        (("providers.health", "    if health.paused or health.blocked(now) or health.gate is Gate.OPEN:\n        return 0\n",
          "    if health.gate is Gate.OPEN:\n        return 0\n"),),
    ),
    Mutant(
        "arm_within_a_block", "a block that came between claim and arm is not seen",
        (("jobs.lifecycle.arm", "  AND {MAY_ARM}\n", ""),),
    ),
    Mutant(
        "windows_ignored", "a window that is used up holds nothing back",
        (("jobs.rooms", "found.add(limit, one_window.left, mine,", "found.add(limit, one_window.most, mine,"),),
    ),
    Mutant(
        "answers_dated_from_the_claim", "an answer seems older than its send where the process stood still, and no window counts it",
        (("jobs.stages.submit", "            deadline_s=deadlines_s[i.task_id],\n            at=armed_at,\n",
          "            deadline_s=deadlines_s[i.task_id],\n            at=now,\n"),),
    ),
    Mutant(
        "claim_before_its_time", "a job that must wait is sent at once",
        (("jobs.lifecycle.claim", " AND not_before <= %(now)s\n", "\n"),),
    ),
    Mutant(
        "count_without_the_lock", "two lanes count what is in flight at the same time",
        (("jobs.lifecycle.claim",
          '        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADMISSION_LOCK])\n', ""),),
        catcher="tests/test_races_claim.py",
    ),
    # --- provider health ----------------------------------------------------------------------------------------------
    Mutant(
        "an_outage_ends_by_a_read", "a good balance read closes the breaker, though no job has succeeded",
        (("providers.health", "        case Read.GOOD if health.cause is Cause.KEY:\n", "        case Read.GOOD:\n"),),
    ),
    Mutant(
        "an_accepted_probe_is_a_good_one", "the breaker closes when the probe is accepted, whatever becomes of it",
        (("providers.health", '        case "stored":\n', '        case "stored" | "accepted":\n'),),
    ),
    Mutant(
        "two_probes", "a second lane takes the probe that is under way",
        (("providers.health",
          "    if health.gate is not Gate.HALF_OPEN or health.probe_id is not None or until <= now:\n",
          "    if health.gate is not Gate.HALF_OPEN or until <= now:\n"),
         ("providers.health", "        return 0 if health.probe_id is not None else 1\n", "        return 1\n")),
    ),
    Mutant(
        "a_block_shrinks", "the last word about a wait counts, not the longest",
        (("providers.health", "    return new if old is None else max(old, new)\n", "    return new\n"),),
        catcher="tests/test_health.py tests/test_health_properties.py",
    ),
    Mutant(
        "half_open_without_a_read", "time alone makes an outage half-open",
        (("providers.health", "        case Read.BAD:\n            return opened(",
          "        case Read.BAD if health.open_s > OPEN_FIRST_S:\n"
          "            return replace(health, gate=Gate.HALF_OPEN, next_try_at=None)\n"
          "        case Read.BAD:\n            return opened("),),
        catcher="tests/test_health.py",
    ),
    Mutant(
        "all_at_once_after_a_block", "after a block everybody sends at the same moment",
        (("providers.health", "reason=_reason(health, reason), ramp=1, ramp_won=0\n", "reason=_reason(health, reason)\n"),),
        catcher="tests/test_health.py tests/test_provider_states.py",
    ),
    Mutant(
        "quota_counts_as_a_failure", "an exhausted quota opens the breaker and wakes people",
        (("providers.health", "_BAD = frozenset({FailureClass.UNSENT,", "_BAD = frozenset({FailureClass.QUOTA_EXHAUSTED,"),),
        catcher="tests/test_health.py tests/test_provider_states.py",
    ),
    # --- recording ----------------------------------------------------------------------------------------------------
    Mutant(
        "record_guarded_by_release", "what a released send learns is dropped",
        (("jobs.lifecycle.record", "WHERE t.id = v.task_id AND old.id = t.id\n",
          "WHERE t.id = v.task_id AND old.id = t.id AND t.blocks_send\n"),),
    ),
    Mutant(
        "record_overwrites", "a second verdict replaces the first",
        (("jobs.lifecycle.record", "  completed_at = coalesce(t.completed_at, CASE WHEN v.completed THEN v.at END),\n",
          "  completed_at = coalesce(CASE WHEN v.completed THEN v.at END, t.completed_at),\n"),
         ("jobs.lifecycle.record", "  failed_at = coalesce(t.failed_at, CASE WHEN v.failed THEN v.at END),\n",
          "  failed_at = coalesce(CASE WHEN v.failed THEN v.at END, t.failed_at),\n"),
         ("jobs.lifecycle.record", "  stored_at = coalesce(t.stored_at, CASE WHEN v.stored THEN v.at END),\n",
          "  stored_at = coalesce(CASE WHEN v.stored THEN v.at END, t.stored_at),\n")),
    ),
    Mutant(
        "facts_dropped_without_the_database", "facts that can't be recorded are forgotten instead of spooled",
        (("jobs.engine", "                    await asyncio.to_thread(spool.put, facts)\n", ""),),
    ),
    Mutant(
        "spool_removed_before_it_is_recorded",
        "a spooled fact is deleted, then recorded",
        (
            (
                "jobs.spool",
                "        touched |= record(facts=[fact])\n",
                "        path.unlink()\n        touched |= record(facts=[fact])\n",
            ),
        ),
        catcher="tests/test_record.py",
    ),
    Mutant(
        "id_stored_late", "the provider's id waits in memory for half a minute",
        (("jobs.engine", "            fact, refusal = await submit.act(self.lane, send)\n",
          "            fact, refusal = await submit.act(self.lane, send)\n            await asyncio.sleep(30)\n"),),
    ),
    # --- what an answer means -----------------------------------------------------------------------------------------
    Mutant(
        "poll_error_taken_as_a_verdict", "a poll that is answered with an error ends the task as failed",
        (("jobs.stages.facts", "    first = task.poll_failures == 0\n    return Fact(\n",
          "    first = task.poll_failures == 0\n"
          "    if read.status:\n"
          "        return Fact(**base, kind='failed', failed=True, decides=True, next_receipt_at=at)\n"
          "    return Fact(\n"),),
    ),
    Mutant(
        "deadline_taken_as_a_failure", "a task that is late is written down as failed",
        (("jobs.stages.facts", "    if isinstance(read, Running):\n        new_word",
          "    if isinstance(read, Running):\n"
          "        if (at - (task.armed_at or at)).total_seconds() > limits.poll_deadline_s / 3:\n"
          "            return Fact(**base, kind='failed', failed=True, decides=True, next_receipt_at=at)\n"
          "        new_word"),),
    ),
    Mutant(
        "pending_receipt_believed", "a receipt that is still pending shows 0, and 0 is believed",
        (("providers.adapters.polza", "final=status in _OUTCOMES and cost is not None", "final=cost is not None"),),
        catcher="tests/test_polza.py",
    ),
    Mutant(
        "no_second_look_after_free", "a failure that turns into a charge an hour later is never noticed",
        (("jobs.stages.reconcile",
          "            next_receipt_at=at + timedelta(seconds=RECHECK_AFTER_S) if recheck else None,",
          "            next_receipt_at=None,"),),
        catcher="tests/test_conditions_money.py",
    ),
    # --- evidence -----------------------------------------------------------------------------------------------------
    Mutant(
        "absence_without_a_canary", "an empty listing proves absence, however old it is",
        (("jobs.evidence", "        or not _fresh(send, listing)\n", ""),
         ("jobs.evidence", "        listing.lag_s is None\n        or not ready\n", "        not ready\n"),
         ("jobs.evidence", "timedelta(seconds=listing.lag_s)", "timedelta(seconds=0)")),
        catcher="tests/test_evidence.py",
    ),
    Mutant(
        "absence_too_early", "absence is concluded while the send may still be under way",
        (("jobs.evidence", "        or not ready\n", ""),
         ("jobs.evidence", "        or not _fresh(send, listing)\n", ""),),
        catcher="tests/test_evidence.py",
    ),
    Mutant(
        "any_candidate_is_ours", "the only unlinked generation is ours, whoever else uses the key",
        (("jobs.evidence",
          "    if not listing.echoes and only_one and ready:\n", "    if len(same_model) == 1:\n"),),
        catcher="tests/test_evidence.py",
    ),
    Mutant(
        "ours_read_before_the_listing", "what goes out while the history is read is taken for the lost send",
        (("jobs.stages.reconcile", "    linked, unsettled = await lane.db(_ours, facts_of_account.pk, since - _LONG_BEFORE)\n", ""),
         ("jobs.stages.reconcile", "    items: dict[str, HistoryItem] = {}\n    page = pages = 1\n",
          "    linked, unsettled = await lane.db(_ours, facts_of_account.pk, since - _LONG_BEFORE)\n"
          "    items: dict[str, HistoryItem] = {}\n    page = pages = 1\n")),
        catcher="tests/test_evidence_found.py",
    ),
    Mutant(
        "overdue_only_when_looked_at", "a history that hangs keeps a lost send from the desk",
        (("jobs.stages.reconcile", "        | recover.overdue_jobs(now=now)\n", ""),),
        catcher="tests/test_evidence_found.py",
    ),
    # --- deciding -----------------------------------------------------------------------------------------------------
    Mutant(
        "release_by_state", "an unknown send is released as if it had been refused",
        (("jobs.policy", "        case TaskState.REFUSED if task.charge in _FREE:\n            return Release.FREE\n",
          "        case TaskState.REFUSED if task.charge in _FREE:\n            return Release.FREE\n"
          "        case TaskState.UNKNOWN:\n            return Release.ABSENT\n"),),
    ),
    Mutant(
        "failure_released_before_its_receipt", "a failed task is taken for free before anybody has asked what it cost",
        (("jobs.policy", "        case TaskState.FAILED if task.charge in _FREE:\n            return Release.FREE\n",
          "        case TaskState.FAILED if task.charge in _FREE:\n            return Release.FREE\n"
          "        case TaskState.FAILED:\n            return Release.UNSENT\n"),),
        catcher="tests/test_policy.py",
    ),
    Mutant(
        "paid_twice_unsaid", "two charges for one job, and nobody is told",
        (("jobs.policy", "    if len(paying) < 2:\n        return []\n", "    if True:\n        return []\n"),),
        catcher="tests/test_policy.py",
    ),
    Mutant(
        "failed_but_charged_unsaid", "a failure that cost money ends the job without a case",
        (("jobs.policy",
          "        case TaskState.FAILED if task.charge is Charge.CHARGED or (\n"
          "            task.charge is Charge.POSSIBLE and task.receipts_over\n"
          "        ):\n            return _case(CaseKind.FAILED_BUT_CHARGED, task, why=why)\n", ""),),
    ),
    Mutant(
        "decide_without_its_guard", "a decision is written over one that was made meanwhile",
        (("jobs.lifecycle.decide", "            .select_for_update(skip_locked=True, no_key=True, of=(\"self\",))\n", ""),
         ("jobs.querysets", "self.filter(pk=pk, state__in=states)", "self.filter(pk=pk)")),
        catcher="tests/test_races_record.py tests/test_races_staff.py",
    ),
    Mutant(
        "retry_ignores_an_open_send", "a person's retry sends again beside a send that may have been charged",
        (("jobs.lifecycle.staff",
          "    if task.charge in {Charge.POSSIBLE, Charge.CHARGED}:\n        raise Refused(\n",
          "    if task.charge in {Charge.POSSIBLE, Charge.CHARGED}:\n"
          "        ProviderTask.objects.filter(pk=task.pk).update(blocks_send=False, released_by=Release.UNSENT)\n"
          "        return\n"
          "    if not task.pk:\n        raise Refused(\n"),),
    ),
    Mutant(
        "retry_ignores_a_kept_result", "what came after a decision, and was paid for, is made and paid for once more",
        (("jobs.lifecycle.staff", "    if job.state != JobState.SUCCEEDED and stored.exists():\n", "    if job.state == JobState.SUCCEEDED:\n"),),
        catcher="tests/test_verbs.py",
    ),
    # --- recovery -----------------------------------------------------------------------------------------------------
    Mutant(
        "armed_sends_withdrawn", "what a dead lane had armed is called unsent",
        (("jobs.lifecycle.recover", ".filter(pk__in=ids, armed_at__isnull=True, unsent_at__isnull=True)",
          ".filter(pk__in=ids, unsent_at__isnull=True)"),
         ("jobs.lifecycle.recover", ".filter(state=TaskState.INTENT, unsent_at__isnull=True)",
          ".filter(state__in=[TaskState.INTENT, TaskState.SENDING], unsent_at__isnull=True)")),
    ),
    Mutant(
        "undecided_forgotten", "facts whose decision was lost are never decided",
        (("jobs.lifecycle.recover", "    return set(waiting.order_by(", "    return set(waiting.none().order_by("),),
    ),
    Mutant(
        "lost_sends_not_declared", "sends of dead lanes stay `sending` for ever",
        (("jobs.stages.reconcile", "        | recover.declare_lost(now=now)\n", ""),),
    ),
    Mutant(
        "leases_without_end", "rows that a dead lane was working at never come back",
        (("jobs.lifecycle.claim", '"lease": now + timedelta(seconds=lease_s)', '"lease": now + timedelta(days=30)'),
         ("jobs.stages.reconcile", "    recover.count_deaths(live=live, now=now)\n", "")),
        catcher="tests/test_races_claim.py",
    ),
    Mutant(
        "watching_ends_with_the_job", "what a cancelled job has under way is not polled any more",
        (("jobs.lifecycle.claim", '    "next_poll_at": "",\n', '    "next_poll_at": "AND blocks_send",\n'),),
    ),
    Mutant(
        "restore_unnoticed", "a database that has forgotten sends goes on sending",
        (("jobs.epoch", "    if known >= set(marked):\n", "    if known is not None:\n"),),
        catcher="tests/test_record.py",
    ),
    # --- results ------------------------------------------------------------------------------------------------------
    Mutant(
        "succeeded_without_a_file", "a download that failed counts as stored",
        (("jobs.stages.fetch", "    if stored and not trouble:\n", "    if True:\n"),),
    ),
    *DESK,
    *PROVIDERS,
    *CALLERS,
)  # fmt: skip
