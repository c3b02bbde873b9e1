# Makes sqlite3.c, all of SQLite in one file, from the distribution's source package, in the directory $1.
# Package lists and settings are there too: nothing of the system is changed.
set -eu
cd "$1"
mkdir -p lists/partial cache/archives/partial sources
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [ -f "$file" ]; then cp "$file" sources/; fi
done
sed -i -E 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' sources/*
apt() {
    apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$PWD/sources" \
        -o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root "$@"
}
# Other sources than the distribution's may have no source packages.
apt update || true
apt source sqlite3
mkdir build
cd build
../sqlite3-*/configure --disable-tcl
make sqlite3.c
mv sqlite3.c sqlite3.h ..
