"""The project's own compiler with the project's own flags, as the build directory recorded them for one source file."""
import concurrent.futures
import json
import pathlib
import shlex
import subprocess


def command(build, source):
    """The command that compiles `source`, without its input, output and dependency file."""
    source = pathlib.Path(source).resolve()
    for entry in json.loads((pathlib.Path(build) / 'compile_commands.json').read_text()):
        if (pathlib.Path(entry['directory']) / entry['file']).resolve() != source:
            continue
        words = shlex.split(entry['command'])
        kept = []
        skip = False
        for word in words:
            if skip:
                skip = False
            elif word in ('-o', '-MF', '-MQ', '-MT'):
                skip = True
            elif word not in ('-c', '-MD', '-MMD') and word != entry['file'] and not word.startswith('-fsanitize'):
                kept.append(word)
        if 'ccache' in kept[0]:
            kept = kept[1:]
        return Compiler(kept, entry['directory'])
    raise SystemExit(f'{source} is not in {build}/compile_commands.json')


class Compiler:
    def __init__(self, words, directory):
        self.words = words
        self.directory = directory

    def run(self, *arguments, text=None):
        """Runs the compiler; returns (succeeded, everything it said)."""
        done = subprocess.run([*self.words, *map(str, arguments)], cwd=self.directory, input=text, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode == 0, done.stdout

    def check(self, text, *arguments):
        """Whether a source text compiles; nothing is written."""
        return self.run('-fsyntax-only', *arguments, '-x', 'c++', '-', text=text)


def each(function, items, jobs=2):
    """function(item) for every item, two at a time, results in order."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(function, items))


def verdict(problems, checked, what):
    """Prints the outcome; the exit status. Nothing checked is a failure."""
    for problem in problems:
        print(problem)
    if not checked:
        problems = [f'no {what} found: nothing was checked']
        print(problems[0])
    print(f'{checked} {what} checked, {len(problems)} problems')
    return 1 if problems else 0
