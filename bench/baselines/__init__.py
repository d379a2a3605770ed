"""How teams do it today, written as plainly as they do, to be measured beside the desk (docs/performance.md).

`queue_task`: a django-q2 task for each job that posts and sleeps between polls. `gather`: `asyncio.gather` over all jobs.
`semaphore`: a semaphore and tenacity in one process. `floor` is none of them: the same calls and files by the desk's own
HTTP clients and nothing else, which is the least that any engine of ours can cost.
"""
