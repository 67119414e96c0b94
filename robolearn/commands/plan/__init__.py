"""`robolearn plan`: memory, time and cost of a run before it starts.

`formulas.py` has the model, and nothing in it knows a robot or a file; `measure.py` finds a machine's constants,
`machine.py` keeps them in a file, `predict.py` applies the formulas to a run, `example.py` to a language model. May
import what `robolearn.commands` may. Read `formulas.py` first, then `plan.py`.
"""
