"""The sink: a run's log as tables of the warehouse."""
