"""“Generate for all”: jobs that exist, once more, with an edited prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from django.db.models import QuerySet

from jobs import intake
from jobs.batches import template as templates
from jobs.batches.plan import Plan, Planned, is_twin
from jobs.intake import InputError, Taken
from jobs.models import Job, Result
from providers.contract import Kind
from providers.models import Target

COLUMNS = ("prompt", "reference", "number", "tenant")
Photos = Literal["same", "result", "none"]


def plan_again(
    jobs: QuerySet[Job], *, template: str, target: Target | None = None, photos: Photos = "same"
) -> Plan:
    """One row a job; its number stands for the line. `target` None: each job's own route. `photos`: those it started from,
    its finished picture, or none. InputError (field `template`) where the template names what there is not."""
    parsed = templates.parse(template, columns=COLUMNS)
    made = Plan()
    seen: set[str] = set()
    rows = jobs.select_related("tenant", "delivered").prefetch_related("photos").order_by("pk")
    for job in rows:
        made.read += 1
        try:
            made.rows.append(_row(job, parsed, target, photos, seen))
        except InputError as error:
            made.refused.append(error.at(job.pk))
    return made


def _row(
    job: Job, template: templates.Template, target: Target | None, photos: Photos, seen: set[str]
) -> Planned:
    cells = {
        "prompt": job.prompt,
        "reference": job.reference,
        "number": str(job.pk),
        "tenant": job.tenant.name,
    }
    prompt = intake.check_prompt(template.fill(cells))
    route = (target.pk,) if target is not None else tuple(job.route)
    kind = Kind(target.kind) if target is not None else Kind(job.kind)
    taken = tuple(_photos(job, photos))
    return Planned(
        line=job.pk, prompt=prompt, route=route, kind=kind, reference=job.reference, priority=job.priority,
        params=job.params, photos=taken,
        twin=is_twin(seen, prompt=prompt, route=route, kind=kind, photos=taken, params=job.params),
    )  # fmt: skip


def _photos(job: Job, photos: Photos) -> Iterable[Taken]:
    if photos == "same":
        for one in job.photos.all():
            # A photo's thumbnail is beside it, under the same hash.
            yield Taken(
                one.key, "", one.sha256, one.media_type, one.size_bytes, one.width, one.height
            )
    elif photos == "result":
        yield from _pictures([job.delivered])


def _pictures(results: Sequence[Result | None]) -> Iterable[Taken]:
    """A result's file never changes under its key, so another job may start from it as it is."""
    for one in results:
        if one is not None and one.removed_at is None and one.width and one.height:
            yield Taken(one.key, one.thumb_key, one.sha256, one.media_type, one.size_bytes, one.width, one.height)  # fmt: skip
