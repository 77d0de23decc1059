"""A program of somebody else builds and runs against rollcall: installed and found by pkg-config, and as a Meson subproject."""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

OFF = ['-Dtests=disabled', '-Dexamples=disabled', '-Dbench=disabled']


def run(*words, **options):
    """Runs a command; its output, or the end of this test with all it said."""
    done = subprocess.run([str(w) for w in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise SystemExit(f'{" ".join(map(str, words))}\n{done.stdout}\nfailed with status {done.returncode}')
    return done.stdout.strip()


def same(what, seen, expected):
    if seen != expected:
        raise SystemExit(f'{what}: {seen!r}, not {expected!r}')


def without_libuv(program):
    same('what the program without a loop prints', run(program, timeout=60), 'hello')
    if ldd := shutil.which('ldd'):
        same('libuv is linked', 'libuv' in run(ldd, program), False)


def by_pkg_config(meson, source, folder, version):
    pkg_config = shutil.which('pkg-config') or shutil.which('pkgconf')
    if not pkg_config:
        print('pkg-config is missing: skipped')
        return 77
    prefix = folder / 'prefix'
    run(*meson, 'setup', *OFF, f'--prefix={prefix}', folder / 'build', source)
    run(*meson, 'install', '-C', folder / 'build')
    found = {p.relative_to(prefix).as_posix() for p in prefix.rglob('*') if p.is_file()}
    expected = {'share/pkgconfig/rollcall.pc', 'share/pkgconfig/rollcall-legacy.pc'} | {
        'include/' + p.relative_to(source / 'include').as_posix() for p in (source / 'include').rglob('*.[hi]pp')}
    same('installed files', sorted(found), sorted(expected))

    environment = {**os.environ, 'PKG_CONFIG_PATH': f'{prefix}/share/pkgconfig:{os.environ.get("PKG_CONFIG_PATH", "")}'}
    same('version in rollcall.pc', run(pkg_config, '--modversion', 'rollcall', env=environment), version)
    flags = shlex.split(run(pkg_config, '--cflags', '--libs', 'rollcall', env=environment))
    same('libuv is required', '-luv' in flags, True)
    program = folder / 'consumer'
    run(*shlex.split(os.environ['CXX']), '-std=c++20', source / 'tests/hygiene/consumer/main.cpp', *flags, '-o', program)
    same('what the program prints', run(program, timeout=60), version)

    flags = shlex.split(run(pkg_config, '--cflags', '--libs', 'rollcall-legacy', env=environment))
    same('libuv is required', '-luv' in flags, False)
    program = folder / 'legacy'
    run(*shlex.split(os.environ['CXX']), '-std=c++20', '-Wl,--no-as-needed', source / 'tests/hygiene/consumer/legacy.cpp', *flags, '-o', program)
    without_libuv(program)
    return 0


def as_subproject(meson, source, folder, version):
    project = folder / 'project'
    shutil.copytree(source / 'tests/hygiene/consumer', project)
    (project / 'subprojects').mkdir()
    (project / 'subprojects/rollcall').symlink_to(source)
    run(*meson, 'setup', '--force-fallback-for=rollcall,rollcall-legacy', folder / 'build', project)
    names = [t['name'] for t in json.loads(run(*meson, 'introspect', '--targets', folder / 'build'))]
    same('targets a parent project pays for', sorted(names), ['consumer', 'legacy'])
    run(*meson, 'compile', '-C', folder / 'build')
    same('what the program prints', run(folder / 'build/consumer', timeout=60), version)
    without_libuv(folder / 'build/legacy')
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--meson', required=True, type=shlex.split)
    parser.add_argument('--source', required=True, type=pathlib.Path)
    parser.add_argument('--version', required=True)
    parser.add_argument('--cxx', required=True)
    parser.add_argument('way', choices=['pkg_config', 'subproject'])
    options = parser.parse_args()
    os.environ['CXX'] = options.cxx
    for name in ('CXXFLAGS', 'LDFLAGS', 'DESTDIR'):
        os.environ.pop(name, None)
    ways = {'pkg_config': by_pkg_config, 'subproject': as_subproject}
    with tempfile.TemporaryDirectory() as folder:
        return ways[options.way](options.meson, options.source.resolve(), pathlib.Path(folder), options.version)


sys.exit(main())
