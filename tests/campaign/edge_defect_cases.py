"""A call that looks at none of its arguments: `edges` must find it."""

import test_generated
from generated import Call, Subject

import overlap


def accepting(comm):
    """Test a function that takes any number."""

    def taking(number):
        with overlap.Runtime(comm) as runtime:
            runtime.preflight()

    subject = Subject(
        ("taking",),
        make=lambda lab: None,
        calls={"taking": Call(lambda lab, one: {"number": 1})},
        functions={"taking": taking},
    )
    test_generated.SUBJECTS["taking"] = (subject,)
    test_generated.bad_arguments(comm, "taking")
