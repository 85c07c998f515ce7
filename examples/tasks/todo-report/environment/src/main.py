import util

# TODO read the file name from the command line
util.run()
