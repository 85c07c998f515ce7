def run():
    pass  # TODO write this


# nothing to do here
# TODO remove
