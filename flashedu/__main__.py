"""python -m flashedu doctor | progress | zoo [exercise ...] | bench [--ladder] [--quick] | class DIR | grade DIR"""
import argparse
import errno
import os
import sys

from flashedu.bench import ladder, speed
from flashedu.classroom import many
from flashedu.classroom.handed_out import Unreadable


def main(argv=None):
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashedu", description="The tools of the course outside its notebooks.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("doctor", help="what works on this machine, and what to do about what does not")
    commands.add_parser("progress", help="which exercises have been passed")
    zoo = commands.add_parser("zoo", help="the kill matrix: every known mistake against every check")
    zoo.add_argument("exercises", nargs="*", metavar="exercise", help="only these exercises (default: all)")
    bench = commands.add_parser("bench", help="how fast our kernels are beside torch's, on this machine's GPU")
    speed.add_arguments(bench)
    ladder.add_arguments(bench)
    course = commands.add_parser("class", help="lay out an nbgrader course of the exercises in a new folder")
    course.add_argument("folder", metavar="DIR")
    many.add_arguments(commands.add_parser("grade", help="grade a folder of submitted notebooks", formatter_class=argparse.RawDescriptionHelpFormatter))
    options = parser.parse_args(argv)
    if options.command == "doctor":
        from flashedu.health import examine

        return 0 if examine() else 1
    if options.command == "progress":
        from flashedu import progress

        print(progress())
        return 0
    if options.command == "bench":
        return (ladder if options.ladder else speed).main(options)
    if options.command == "class":
        from flashedu.classroom.course import lay_out

        try:
            lay_out(options.folder)
        except BrokenPipeError:  # the course is made, and nobody reads what is said of it
            raise
        except OSError as error:  # the disk is full, say
            raise SystemExit(f"No course was made: {error}.") from None
        return 0
    if options.command == "grade":
        try:
            return many.main(options)
        except (Unreadable, SyntaxError) as error:  # no submission's: those are caught where they are read
            raise SystemExit(f"Nothing was graded: a notebook in {options.handed_out} cannot be what was handed out. {error}") from None
    from flashedu.grading.zoo import kill_matrix

    return kill_matrix(options.exercises)


if __name__ == "__main__":
    try:
        try:
            sys.exit(main())
        finally:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # not as Python ends, when nobody would catch what it raises
                stream.flush()
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOSPC:
            sys.exit("The output could not be written: no space is left there.")
        os.dup2(1, 2)  # whoever reads the output, `head` say, has seen enough
        sys.exit(128 + 13)  # as a shell reports a program that this signal has ended, SIGPIPE
