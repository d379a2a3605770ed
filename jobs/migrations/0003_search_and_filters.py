"""Indexes for the admin's search and filters at millions of jobs, and for stuck.py. pg_trgm is a trusted extension: the
database's owner may create it."""

import django.contrib.postgres.indexes
import django.contrib.postgres.operations
from django.db import migrations, models
from django.db.models.functions import Upper


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_task_sends")]

    operations = [
        django.contrib.postgres.operations.TrigramExtension(),
        migrations.AddIndex(
            model_name="job",
            index=django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.indexes.OpClass(Upper("prompt"), name="gin_trgm_ops"),
                name="job_prompt_words",
            ),
        ),
        # With the usual 100 samples one prompt stands for 1 % of the table, and a rare word that happens to be among
        # them is taken for a common one, for which the newest jobs are read first.
        migrations.RunSQL(
            "ALTER INDEX job_prompt_words ALTER COLUMN 1 SET STATISTICS 1000",
            migrations.RunSQL.noop,
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                models.OrderBy(models.F("created_at"), descending=True), name="job_created"
            ),
        ),
        migrations.AddIndex(
            model_name="providertask",
            index=models.Index(
                models.F("state"),
                models.OrderBy(models.F("job"), descending=True),
                models.OrderBy(models.F("created_at"), descending=True),
                condition=models.Q(("state", "stored"), _negated=True),
                name="task_not_stored",
            ),
        ),
        migrations.AddIndex(
            model_name="providertask",
            index=models.Index(
                models.F("charge"),
                models.OrderBy(models.F("job"), descending=True),
                models.OrderBy(models.F("created_at"), descending=True),
                condition=models.Q(("charge__in", ["refunded", "written_off"])),
                name="task_charge_undone",
            ),
        ),
        migrations.AddIndex(
            model_name="providertask",
            index=models.Index(
                models.F("target"),
                models.OrderBy(models.F("created_at"), descending=True),
                name="task_newest_of_target",
            ),
        ),
    ]
