"""A model as the evaluator: it looks at the work, writes tests of its own, runs them, and gives a verdict.

`evaluator` holds the rules of a judgement, `asking` the HTTP, `chat` and `messages` the two protocols, `workshop` what
the model may do with the work, `prompt` what it is told.
"""
