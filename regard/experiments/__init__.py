"""Small programs on top of everything else, each with an answer to show: the paper's tables, its questions, the demos.

Only the command comes in. `lab` is the frame that all of them have: trials that resume, reports, charts. Begin with
`table1`.
"""
