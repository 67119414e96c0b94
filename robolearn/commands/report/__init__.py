"""`robolearn report`: one page about a run, or about several runs compared; a file that needs no network.

`report.py` is the command. `reading.py` reads a run folder; `curves.py`, `results.py` and `pictures.py` make the parts
of the page of one run, `compare.py` with `statistics.py` the page of several. `blocks.py` says what a page consists of,
and `page.py` writes it with the template page.html, page.css and page.js. Read `report.py` first.
"""
