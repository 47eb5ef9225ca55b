#!/usr/bin/env bash
# Builds a release from the tag at this commit into dist/: wheel, image, SBOM, chart, changelog.
# BUILDAH and BUILD_ARGS are the program that builds the image, with its options, and more of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
read -ra buildah <<< "${BUILDAH:-buildah}"
read -ra build_args <<< "${BUILD_ARGS:-}"
python=${PYTHON:-.venv/bin/python}

refuse() {
  echo "The release is not built. $*" >&2
  exit 1
}

[ -z "$(git status --porcelain)" ] || refuse 'The working tree has changes: commit or remove them.'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tags=$(git tag --points-at HEAD | paste -sd' ')
[ -n "$tags" ] || refuse "No tag is at this commit: run “git tag v$version”."
[[ " $tags " = *" v$version "* ]] ||
  refuse "The tag is $tags, and pyproject.toml has version $version: correct one of them."
changes=$(awk -v version="$version" \
  '/^## / { is_ours = ($2 == version || $2 == version ",") } is_ours' CHANGELOG.md)
[ -n "$changes" ] || refuse "CHANGELOG.md has no section $version: write it."
[[ "${changes%%$'\n'*}" != *'not released'* ]] ||
  refuse "CHANGELOG.md says that $version is not released yet: write its date."

rm -rf dist
mkdir dist
"$python" -m pip wheel --quiet --no-deps --wheel-dir dist .
# What the locks install; the image has Debian's packages besides.
cat requirements.txt requirements-s3.txt |
  "$python" -m cyclonedx_py requirements - --pyproject pyproject.toml --mc-type application \
    --output-reproducible --output-file "dist/delayboard-$version.cdx.json"
"$python" - "$version" <<'PYTHON'
import sys

from helm_python import chart

version = sys.argv[1]
chart.package("docs/deploy/helm", destination="dist", version=version, app_version=version)
PYTHON
echo "$changes" > "dist/CHANGES-$version.md"
image=localhost/delayboard:$version
"${buildah[@]}" bud "${build_args[@]}" --format docker --file Containerfile --tag "$image" \
  --build-arg VERSION="$version" --build-arg REVISION="$(git rev-parse HEAD)" \
  --timestamp "$(git log -1 --format=%ct)" .
"${buildah[@]}" push "$image" "docker-archive:dist/delayboard-$version-image.tar:$image"
(cd dist && sha256sum -- * > SHA256SUMS)
echo "The release $version is in dist/:"
ls -sh dist
