"""From sampled text to an assistant message: one parser for each family of models, chosen by the template.

A call that names no tool stays text, as does one that is never closed. A call whose name can be read but whose
arguments are no JSON is a call with those raw arguments: the client answers it with an error, and the policy sees it.
"""
