"""verl as an engine: Ray, FSDP2, vLLM or SGLang. No file of verl is changed.

In reading order: `launch` (the process of `pivot train`), `compose` (what verl is started with), `trainer` (verl's
trainer, which drives the run), `worker` and `rank` (what each rank does), `rollouts` and `replica` (who samples).
`launch`, `compose` and `rollouts` need no verl. The generic half of the engine is in `engines/ranks.py` and
`engines/jobs.py`.
"""
