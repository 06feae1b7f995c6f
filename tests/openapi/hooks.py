"""What schemathesis is told beyond the document."""
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    """Streams have no end, and whoever reads one to its end waits for ever: a log is read, not followed."""
    if case.query and "follow" in case.query and case.query["follow"] in (True, "true"):
        case.query["follow"] = False
