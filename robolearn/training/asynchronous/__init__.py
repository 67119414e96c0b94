"""Asynchronous training, `robolearn train ... mode=async`: actors simulate while the learner learns.

Read `remote.py` first: the environments of other processes as the training loop sees them. `pool.py` has the actors,
their orders and batches, `credits.py` how far they may be ahead, `worker.py` what an actor does, `ledger.py` the log of
the batches. An engine starts actors and carries tensors: `local.py` with processes of this machine (`process.py` is
their program, `store.py` their files in memory), `on_ray.py` on a Ray cluster. Only that file knows Ray.
"""
