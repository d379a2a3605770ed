"""Rating a delivered result: the verb, and the three buttons of a job's page with their keys 1 to 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from jobs import display
from jobs.admin.forms import VerbForm
from jobs.admin.verb import Effect, Verb
from jobs.display import Look
from jobs.lifecycle import ratings
from jobs.models import Job


class RatingForm(VerbForm):
    rating = forms.ChoiceField(
        label=gettext_lazy("Rating"),
        required=False,
        choices=[*((value, look.word) for value, look in display.RATINGS.items()), ("", gettext_lazy("no rating"))],
        widget=forms.RadioSelect,
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        result = getattr(self.thing, "delivered", None)
        self.initial.setdefault("rating", result.rating if result is not None else "")


def _offered(job: Job) -> bool:
    return job.delivered is not None and job.delivered.task_id is not None


RATE = Verb(
    name="rate",
    permission="jobs.rate_result",
    label=gettext_lazy("Rate the result"),
    title=gettext_lazy("What do you think of the result?"),
    icon="gauge",
    done=gettext_lazy("The rating is kept."),
    form=RatingForm,
    effects=lambda _job: [
        Effect(
            "user-check",
            gettext_lazy("It is kept with your name, and can be changed or taken back."),
        ),
        Effect("gauge", gettext_lazy("The comparison of targets counts it.")),
    ],
    offered=_offered,
    run=lambda job, actor, now, data: ratings.rate(
        job_id=job.pk, rating=data["rating"], actor=actor, now=now
    ),
)


@dataclass(frozen=True, slots=True)
class Button:
    value: str
    key: int
    look: Look
    chosen: bool


def buttons(job: Job) -> list[Button]:
    """None where there is nothing to rate."""
    if not _offered(job) or job.delivered is None:
        return []
    return [
        Button(value, key, look, value == job.delivered.rating)
        for key, (value, look) in enumerate(display.RATINGS.items(), 1)
    ]
