"""The OpenAPI document against the API: requests that fit it and requests that don't, in this process and transaction."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.checks import negative_data_rejection as refuses_what_does_not_fit
from schemathesis.core.failures import FailureGroup

from jobs.models import Job
from tests.api_calls import one_connection

# "No 5xx, no undocumented answer", and what breaks the document is refused.
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, refuses_what_does_not_fit,
]  # fmt: skip

# A refusal that the check does not take for one: a form with too many files.
_BESIDE = {413: refuses_what_does_not_fit}


@dataclass(slots=True)
class Fuzz:
    """Requests with this token, half of those that fit about the known job and batch. `seen`: by operation and status."""

    text: str
    known: Job
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)

    def run(self, *, each: int) -> None:
        """About so many to each operation. AssertionError where an answer is not as it should be."""
        with one_connection():
            schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", get_wsgi_application())
            for found in schema.get_all_operations():
                operation: Any = found.ok()  # type: ignore[union-attr]  # another would be a broken document
                for mode in schemathesis.GenerationMode:
                    self._try(operation, mode, max(1, each // len(schemathesis.GenerationMode)))

    def _try(self, operation: Any, mode: Any, most: int) -> None:
        fits = mode is schemathesis.GenerationMode.POSITIVE
        turns = itertools.count()

        @seed(1)
        @hypothesis_settings(
            max_examples=most, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            if fits and next(turns) % 2:
                numbers = {"job_id": self.known.pk, "batch_id": self.known.batch_id}
                case.path_parameters |= {name: numbers[name] for name in numbers.keys() & case.path_parameters.keys()}  # fmt: skip
            case.headers["Authorization"] = f"Bearer {self.text}"
            with transaction.atomic():
                response = case.call()
            self.seen[operation.label, response.status_code] += 1
            without = _BESIDE.get(response.status_code)
            checks = [check for check in CHECKS if check is not without]
            case.validate_response(response, checks=checks)

        try:
            one()
        except FailureGroup as failures:
            told = "\n".join(f"{type(one).__name__}: {one}" for one in failures.exceptions)
            raise AssertionError(f"{operation.label} {told}"[:4000]) from None
