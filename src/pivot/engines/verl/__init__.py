"""The same method on verl: Ray, FSDP2, vLLM or SGLang. No file of verl is changed.

A reading order: `compose` (what verl is started with), `trainer` (verl's trainer, whose step is the embedded
engine's), `cluster_trainer` (that step with its forwards and updates on the ranks), `jobs` (what a rank is given),
`rank` (what it does with it), `sharded` (the model in FSDP2 shards), `rollouts` and `replica` (who samples).
Only `compose`, `requirements` and `launch` are imported where verl is not installed.
"""
