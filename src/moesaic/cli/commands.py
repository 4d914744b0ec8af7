"""Commands: the group of `moesaic`'s commands, which turns bad input into one line on stderr and exit code 2."""

from __future__ import annotations

import sys
from typing import Any, NoReturn, final

from typer import TyperException
from typer.core import TyperGroup
from typing_extensions import override

from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.printing import print_note
from moesaic.errors import MoesaicError, NoBackendError


@final
class Commands(TyperGroup):
    """Runs a command and exits; an error that moesaic raises on purpose never shows a traceback."""

    @override
    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> NoReturn:
        del standalone_mode  # errors are printed here, so the group below must raise them
        try:
            code = TyperGroup.main(self, *args, standalone_mode=False, **options)
        except NoBackendError as fault:
            print_note(f"moesaic: {fault}")
            sys.exit(ExitCode.NO)
        except MoesaicError as fault:
            _complain(str(fault))
        except BrokenPipeError:
            raise  # a reader that has seen enough: handled where the process ends
        except OSError as fault:  # a full disk behind stdout, a file that cannot be read
            _complain(f"{fault.strerror or fault}: {fault.filename or 'the output'}")
        except TyperException as fault:
            if not fault.format_message():  # called without a command: the help was shown
                sys.exit(ExitCode.BAD_INPUT)
            _complain(f"{fault.format_message()} (moesaic --help lists the commands, moesaic COMMAND --help options)")
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _complain(message: str) -> NoReturn:
    print_note("moesaic: " + " ".join(message.split()))
    sys.exit(ExitCode.BAD_INPUT)
