"""What people did, read over all: indexes of it, and what some of it had no place for."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q

BY_PEOPLE = (
    (
        Q(actor__isnull=False)
        | Q(
            kind__in=(
                "retried", "retargeted", "edited", "sent_again", "marked_manual", "resolved", "cancelled", "poll_asked",
                "id_attached", "candidate_accepted", "absent_confirmed", "written_off", "refunded", "delivered_instead",
            )
        )
    )
    & ~Q(kind="created")
    & ~Q(data__has_key="bulk")
    & ~Q(data__has_key="batch")
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0013_visits"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="CaseEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("kind", models.CharField(max_length=40, verbose_name="what")),
                ("data", models.JSONField(blank=True, default=dict)),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "case",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="jobs.case",
                    ),
                ),
            ],
            options={
                "verbose_name": "case event",
                "verbose_name_plural": "case events",
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="hold",
            name="lift_reason",
            field=models.TextField(
                blank=True, db_default="", default="", verbose_name="why lifted"
            ),
        ),
        migrations.AddField(
            model_name="standingdecision",
            name="ended_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="ended by",
            ),
        ),
        migrations.AddField(
            model_name="tenantevent",
            name="reason",
            field=models.TextField(blank=True, db_default="", default="", verbose_name="why"),
        ),
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(
                F("at").desc(), F("id").desc(), name="job_event_by_people", condition=BY_PEOPLE
            ),
        ),
        migrations.AddIndex(
            model_name="batchevent",
            index=models.Index(
                F("at").desc(), F("id").desc(), name="batch_event_by_people", condition=~Q(kind="completed")
            ),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(
                F("completed_at").desc(), name="batch_ended", condition=Q(completed_at__isnull=False)
            ),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(
                F("created_at").desc(), F("id").desc(), name="batch_by_people", condition=Q(created_by__isnull=False)
            ),
        ),
        migrations.AddIndex(
            model_name="case", index=models.Index(F("opened_at").desc(), name="case_opened")
        ),
        migrations.AddIndex(
            model_name="case",
            index=models.Index(
                F("resolved_at").desc(), name="case_settled", condition=Q(resolved_at__isnull=False)
            ),
        ),
    ]  # fmt: skip
