"""The mutants of what people do: batches, decisions, work for many jobs at once, the books."""

from __future__ import annotations

from bench.sim.mutation import Mutant

DESK: tuple[Mutant, ...] = (
    # --- batches ------------------------------------------------------------------------------------------------------
    Mutant(
        "pause_stops_nothing", "the jobs of a paused batch stay claimable",
        (("jobs.lifecycle.batches", 'F("not_before") + PAUSE', 'F("not_before")'),),
    ),
    Mutant(
        "resume_leaves_jobs_behind", "a batch goes on, and its jobs wait for ever",
        (("jobs.lifecycle.batches", 'F("not_before") - PAUSE', 'F("not_before")'),),
    ),
    Mutant(
        "batch_complete_too_early", "a batch is called complete while the last of it is being made",
        (("jobs.lifecycle.batches", "AND j.state IN ('pending', 'active'))", "AND j.state = 'pending')"),),
    ),
    Mutant(
        "batch_completed_each_minute", "the end of a batch is told again and again",
        (("jobs.lifecycle.batches", "  completed_at IS NULL AND EXISTS", "  EXISTS"),),
    ),
    Mutant(
        "batch_retry_ignores_costs", "retrying what failed sends again where the first send may have cost",
        (("jobs.lifecycle.batches",
          "    found = Job.objects.filter(pk__in=ids).exclude(\n"
          "        Exists(in_the_way) | (Q(decided_at__isnull=False) & Exists(given_up))\n    )\n",
          "    found = Job.objects.filter(pk__in=ids)\n"),),
        catcher="tests/test_batches_verbs.py",
    ),
    # --- the manual desk ----------------------------------------------------------------------------------------------
    Mutant(
        "word_taken_for_proof", "a person's word that a send never arrived counts as evidence",
        (("jobs.lifecycle.decisions",
          "            released_by=Release.PERSON,\n            released_user_id=actor.pk if actor else None,\n        )\n"
          '        staff.close_cases(job, now=now, actor=actor, resolution="absent")\n',
          "            released_by=Release.ABSENT,\n        )\n"
          '        staff.close_cases(job, now=now, actor=actor, resolution="absent")\n'),),
        catcher="tests/test_decisions.py",
    ),
    Mutant(
        "called_absent_on_its_way", "a person may say that it never arrived while it may still arrive",
        (("jobs.lifecycle.decisions", "    if now < over:\n", "    if now < over and not task.pk:\n"),),
        catcher="tests/test_decisions.py",
    ),
    Mutant(
        "refund_while_it_goes_on", "what is still being made counts as paid back, and is made once more",
        (("jobs.lifecycle.decisions",
          "    if job.state == JobState.ACTIVE and task.blocks_send and task.state != unless:\n        raise Refused(busy)\n",
          ""),),
        catcher="tests/test_decisions.py",
    ),
    Mutant(
        "loss_counts_as_refund", "what was written off counts as paid back",
        (("jobs.lifecycle.decisions",
          "            task,\n            Charge.WRITTEN_OFF,\n            actor=actor,\n",
          "            task,\n            Charge.REFUNDED,\n            actor=actor,\n"),),
        catcher="tests/test_decisions.py",
    ),
    Mutant(
        "edit_ignores_costs", "another prompt is sent although a send with the first may have cost",
        (("jobs.lifecycle.decisions", "        if costly is not None:\n", "        if costly is not None and not job.pk:\n"),),
        catcher="tests/test_decisions.py",
    ),
    Mutant(
        "delivered_with_a_send_open", "a job is delivered by hand and its send blocks on for ever",
        (("jobs.lifecycle.decisions",
          "            staff.withdraw_intent(job, now=now)\n            staff.release_by_person(job, actor=actor)\n"
          '        staff.close_cases(job, now=now, actor=actor, resolution="delivered")\n',
          "            pass\n"
          '        staff.close_cases(job, now=now, actor=actor, resolution="delivered")\n'),),
        catcher="tests/test_decisions.py",
    ),
    # --- many at once -------------------------------------------------------------------------------------------------
    Mutant(
        "bulk_ignores_costs", "retrying many sends again where a send may have cost",
        (("jobs.lifecycle.bulk_acts", "    if (act.needs_free or act.spares) and seen.costly:\n",
          "    if act.spares and seen.costly:\n"),),
        catcher="tests/test_bulk.py",
    ),
    Mutant(
        "bulk_ignores_what_is_under_way", "retrying many sends a second time beside an intent",
        (("jobs.lifecycle.bulk_acts", "    if act.needs_free and seen.under_way:\n",
          "    if act.needs_free and seen.under_way and not seen.kind:\n"),),
        catcher="tests/test_bulk.py",
    ),
    Mutant(
        "two_bulk_workers", "two workers do the same chunk at once",
        (("jobs.lifecycle.bulk", "        return bool(cursor.fetchone() == (True,))\n", "        return True\n"),
         ("jobs.lifecycle.bulk", "            .select_for_update(no_key=True, skip_locked=True)\n            .first()\n",
          "            .first()\n")),
        catcher="tests/test_bulk.py",
    ),
    Mutant(
        "chunk_done_again", "a worker that goes on does its chunk once more",
        (("jobs.lifecycle.bulk", "        run.cursor += 1\n", "        run.cursor += run.worked_at is not None\n"),),
    ),
    # --- the books ----------------------------------------------------------------------------------------------------
    Mutant(
        "ours_called_nobodys", "a generation of ours is called nobody's",
        (("jobs.statement", "    pairs: dict[UUID, Theirs] = {}\n", "    pairs: dict[UUID, Theirs] = {}\n    by_id.clear()\n"),),
    ),
    Mutant(
        "lost_send_adopted", "what a lost send of ours may have made becomes another job's",
        (("jobs.lifecycle.statement", "            if job_id is not None:\n", "            if job_id is not None and not orphan.pk:\n"),),
        catcher="tests/test_statement_rows.py",
    ),
    Mutant(
        "reading_left_behind", "a reading whose worker died waits for ever",
        (("jobs.lifecycle.statement", "    silent = now - timedelta(seconds=LEASE_S)\n",
          "    silent = now - timedelta(days=LEASE_S)\n"),),
        catcher="tests/test_statement_rows.py",
    ),
)  # fmt: skip
