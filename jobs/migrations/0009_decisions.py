"""What people decide: the money of a send settled by a person, an edited prompt, a result that came after a decision."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0008_tenant_older"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": [
                    ("retry_job", "Can retry a job"),
                    ("resend_job", "Can send again although a charge is possible"),
                    ("retarget_job", "Can retry a job on another target"),
                    ("manual_job", "Can mark a job for manual handling"),
                    ("resolve_job", "Can resolve a job"),
                    ("cancel_job", "Can cancel a job"),
                    ("edit_job", "Can retry a job with an edited prompt"),
                    ("deliver_job", "Can deliver another result of a job"),
                ],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="providertask",
            options={
                "permissions": [
                    ("poll_providertask", "Can ask the provider now"),
                    ("attach_providertask", "Can attach a provider id"),
                    ("accept_providertask", "Can accept a candidate of the provider's history"),
                    ("absent_providertask", "Can send again what the provider says never arrived"),
                    ("writeoff_providertask", "Can write a charge off"),
                    ("refund_providertask", "Can mark a charge as refunded"),
                ],
                "verbose_name": "provider task",
                "verbose_name_plural": "provider tasks",
            },
        ),
        migrations.AddField(
            model_name="job",
            name="original_prompt",
            field=models.TextField(
                blank=True, db_default="", default="", verbose_name="original prompt"
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="edited_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="providertask",
            name="staff_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="money settled"),
        ),
        migrations.AddField(
            model_name="providertask",
            name="staff_user",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="providertask",
            name="staff_reference",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                max_length=200,
                verbose_name="the provider's reference",
            ),
        ),
        migrations.AddConstraint(
            model_name="providertask",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("staff_charge__isnull", True),
                    ("staff_charge__in", ["refunded", "written_off"]),
                    _connector="OR",
                ),
                name="task_staff_charge_known",
            ),
        ),
        migrations.AlterField(
            model_name="case",
            name="kind",
            field=models.CharField(
                choices=[
                    ("unknown_send", "sent, outcome unknown"),
                    ("paid_without_result", "paid without a result"),
                    ("failed_but_charged", "failed but charged"),
                    ("lost_at_provider", "lost at the provider"),
                    ("never_answered", "never answered"),
                    ("fetch_failed", "could not be fetched"),
                    ("conflict", "two different facts"),
                    ("poison", "workers die at it"),
                    ("restore", "set aside after a restore"),
                    ("by_hand", "handled by hand"),
                    ("refused_by_all", "no target made it"),
                    ("attempts_exhausted", "attempts exhausted"),
                    ("late_result", "a result came after the decision"),
                    ("paid_twice", "paid twice?"),
                    ("dead_callback", "callback never delivered"),
                    ("orphan", "at the provider without a job"),
                ],
                max_length=24,
                verbose_name="kind",
            ),
        ),
    ]
