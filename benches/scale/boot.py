def measure(*_):
    pass
