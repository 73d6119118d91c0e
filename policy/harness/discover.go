package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"gloved.dev/internal/ident"
)

// maxLinks bounds the symbolic links followed for one name, as the kernel does (path_resolution(7)).
const maxLinks = 40

// Reason codes of RootReason and of Detection diagnostics.
const (
	ReasonInvalid       = "invalid_path"    // not absolute and normal
	ReasonNotFound      = "not_found"       // the root or the executable does not exist
	ReasonNotDirectory  = "not_directory"   // the root, or something on the way, is no directory
	ReasonUntrusted     = "untrusted_owner" // owned by neither root nor the service account
	ReasonWritable      = "writable"        // group or others may write
	ReasonNotRegular    = "not_regular"     // the entry is no regular file
	ReasonNotExecutable = "not_executable"  // no execute bit is set
	ReasonLinks         = "too_many_links"  // more than 40 symbolic links
	ReasonIO            = "io"              // the system refused
)

// RootReason says why one search root gave no executable. Path is the object at fault, a host path
// for the owner's eyes only.
type RootReason struct {
	Root, Code, Path string
}

func (r RootReason) String() string {
	return fmt.Sprintf("%s: %s (%s)", r.Root, r.Code, r.Path)
}

// NotFoundError means that no search root gave a trusted executable; it lists each root's reason in
// the order in which they were tried. Its text holds host paths.
type NotFoundError struct {
	RuntimeID string
	Roots     []RootReason
}

// Error lists every root and its reason.
func (e *NotFoundError) Error() string {
	lines := make([]string, len(e.Roots))
	for i, r := range e.Roots {
		lines[i] = r.String()
	}
	return fmt.Sprintf("harness: no trusted executable for %s: %s", e.RuntimeID, strings.Join(lines, "; "))
}

// Finder finds executables. EUID is the service account: it and root are the only owners trusted.
type Finder struct {
	EUID uint32
}

// NewFinder returns a Finder for the effective user of this process.
func NewFinder() Finder {
	return Finder{EUID: uint32(os.Geteuid())} //nolint:gosec // Geteuid is never negative on Unix
}

// Discover returns the canonical absolute path of the adapter's executable in the first root that
// has a trusted one, trying the roots in the given order. In a root everything that decides what
// the name means is judged: every directory on the way (of the root, of each symbolic link and of
// the final file) must belong to root or the service account and be writable by nobody else, where
// a root-owned sticky directory is accepted as an ancestor but not as the root itself nor as the
// directory of the file; links and the file itself must have the same owners, and the file must be
// regular, with an execute bit and writable by its owner only. Errors are *NotFoundError.
func (f Finder) Discover(a Adapter, roots []string) (string, error) {
	miss := &NotFoundError{RuntimeID: a.RuntimeID}
	for _, root := range roots {
		found, reason := f.in(root, a.Executable)
		if reason == nil {
			return found, nil
		}
		reason.Root = root
		miss.Roots = append(miss.Roots, *reason)
	}
	return "", miss
}

func (f Finder) in(root, name string) (string, *RootReason) {
	if !ident.AbsPath(root) {
		return "", &RootReason{Code: ReasonInvalid, Path: root}
	}
	dir, info, reason := f.resolve(root)
	if reason != nil {
		return "", reason
	}
	if !info.IsDir() {
		return "", &RootReason{Code: ReasonNotDirectory, Path: dir}
	}
	if reason := f.trust(dir, info, false); reason != nil {
		return "", reason
	}
	file, info, reason := f.resolve(path.Join(dir, name))
	if reason != nil {
		return "", reason
	}
	return file, f.executable(file, info)
}

// executable judges the final file and the directory that holds it.
func (f Finder) executable(file string, info fs.FileInfo) *RootReason {
	if !info.Mode().IsRegular() {
		return &RootReason{Code: ReasonNotRegular, Path: file}
	}
	if info.Mode().Perm()&0o111 == 0 {
		return &RootReason{Code: ReasonNotExecutable, Path: file}
	}
	if !ident.AbsPath(file) {
		return &RootReason{Code: ReasonInvalid, Path: file}
	}
	if reason := f.trust(file, info, false); reason != nil {
		return reason
	}
	parent := path.Dir(file)
	pinfo, err := os.Lstat(parent)
	if err != nil {
		return ioReason(parent, err)
	}
	return f.trust(parent, pinfo, false)
}

// resolve follows name to its canonical path, one component at a time, and judges every directory
// and link on the way; the final object is returned unjudged. Following the links here, and not in
// one call, is what keeps a link to a link in somebody else's directory from deciding what runs.
func (f Finder) resolve(name string) (string, fs.FileInfo, *RootReason) {
	rest := strings.Split(name, "/")
	at := "/"
	info, err := os.Lstat(at)
	if err != nil {
		return "", nil, ioReason(at, err)
	}
	for links := 0; len(rest) > 0; {
		c := rest[0]
		rest = rest[1:]
		if c == "" || c == "." {
			continue
		}
		if reason := f.directory(at, info); reason != nil {
			return "", nil, reason
		}
		next := path.Join(at, c) // ".." is exact here: at holds no links
		ninfo, err := os.Lstat(next)
		if err != nil {
			return "", nil, ioReason(next, err)
		}
		if ninfo.Mode()&fs.ModeSymlink == 0 {
			at, info = next, ninfo
			continue
		}
		if links++; links > maxLinks {
			return "", nil, &RootReason{Code: ReasonLinks, Path: next}
		}
		target, reason := f.link(next, ninfo)
		if reason != nil {
			return "", nil, reason
		}
		rest = append(strings.Split(target, "/"), rest...)
		if strings.HasPrefix(target, "/") {
			at = "/"
			if info, err = os.Lstat(at); err != nil {
				return "", nil, ioReason(at, err)
			}
		}
	}
	return at, info, nil
}

func (f Finder) directory(at string, info fs.FileInfo) *RootReason {
	if !info.IsDir() {
		return &RootReason{Code: ReasonNotDirectory, Path: at}
	}
	return f.trust(at, info, true)
}

func (f Finder) link(at string, info fs.FileInfo) (string, *RootReason) {
	if !f.owner(info) {
		return "", &RootReason{Code: ReasonUntrusted, Path: at}
	}
	target, err := os.Readlink(at)
	if err != nil {
		return "", ioReason(at, err)
	}
	return target, nil
}

// trust judges owner and mode. An ancestor may be a root-owned sticky directory (/tmp): in it nobody
// but root can rename or remove what we or root put there.
func (f Finder) trust(at string, info fs.FileInfo, ancestor bool) *RootReason {
	if !f.owner(info) {
		return &RootReason{Code: ReasonUntrusted, Path: at}
	}
	if info.Mode().Perm()&0o022 == 0 {
		return nil
	}
	if ancestor && info.IsDir() && info.Mode()&fs.ModeSticky != 0 && uid(info) == 0 {
		return nil
	}
	return &RootReason{Code: ReasonWritable, Path: at}
}

func (f Finder) owner(info fs.FileInfo) bool {
	u := uid(info)
	return u == 0 || u == int64(f.EUID)
}

// uid returns the owner, or -1 if the platform does not say, which no rule accepts.
func uid(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(st.Uid)
	}
	return -1
}

func ioReason(at string, err error) *RootReason {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &RootReason{Code: ReasonNotFound, Path: at}
	case errors.Is(err, syscall.ENOTDIR):
		return &RootReason{Code: ReasonNotDirectory, Path: at}
	}
	return &RootReason{Code: ReasonIO, Path: at}
}

// Detection is what one look for a harness found. It judges no trust: what it found may well be
// refused by Discover and need staging.
type Detection struct {
	RuntimeID          string `json:"runtime_id"`
	ExecutableName     string `json:"executable_name"`
	Available          bool   `json:"available"`
	ResolvedExecutable string `json:"resolved_executable"` // the entry as named in its root, links not followed; "" when not available
	Diagnostic         string `json:"diagnostic"`
}

// Detect looks for every adapter in the given roots, in order, and reports the first entry of the
// adapter's name that is a regular file (links followed) with an execute bit.
func Detect(roots []string) []Detection {
	out := make([]Detection, 0, len(table))
	for _, a := range table {
		d := Detection{RuntimeID: a.RuntimeID, ExecutableName: a.Executable}
		var why []string
		for _, root := range roots {
			entry, code := present(root, a.Executable)
			if code == "" {
				d.Available, d.ResolvedExecutable, d.Diagnostic = true, entry, "found"
				break
			}
			why = append(why, root+": "+code)
		}
		if !d.Available {
			d.Diagnostic = strings.Join(why, "; ")
			if len(roots) == 0 {
				d.Diagnostic = "no search directory was given"
			}
		}
		out = append(out, d)
	}
	return out
}

func present(root, name string) (entry, code string) {
	if !ident.AbsPath(root) {
		return "", ReasonInvalid
	}
	entry = filepath.Join(root, name)
	info, err := os.Stat(entry)
	switch {
	case err != nil:
		return "", ioReason(entry, err).Code
	case !info.Mode().IsRegular():
		return "", ReasonNotRegular
	case info.Mode().Perm()&0o111 == 0:
		return "", ReasonNotExecutable
	}
	return entry, ""
}
