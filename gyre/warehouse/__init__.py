"""The warehouse: every event as a row, views over them, and questions that are asked often.

`rows` turns a message of the log into rows, `tables` and `views` say what lies where, `queries` holds the questions:
all of them text and data, without I/O. `clickhouse` is the one door to an engine. Nothing here knows the bus.
"""
