x = 1  # TODO rename x
