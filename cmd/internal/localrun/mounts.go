package localrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/policy"
	"gloved.dev/runtime/workspace"
)

// WorkspaceTarget is where the current directory appears.
const WorkspaceTarget = "/workspace"

// A Mount is one host object in the session.
type Mount struct {
	Alias  string
	Source string // as the user gave it, absolute
	Host   string // the real path
	Target string
	Copy   bool   // an ephemeral writable copy; otherwise read-only
	Flag   string // how the user said it, for messages

	MaxBytes Bytes // of a copy: its filesystem's size

	bytes, entries uint64 // measured
}

// footprint is what the copy needs, at least: each entry up to a page more than its
// size, for that is how files lie in memory.
func (m *Mount) footprint() Bytes {
	return Bytes((m.bytes+m.entries*page+page-1)/page*page) + minShare
}

// mounts decides about all host paths of a request.
func (r *Request) mounts() ([]*Mount, error) {
	var all []*Mount
	if !r.NoWorkspace {
		m, err := r.workspace()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	for i, spec := range r.Reads {
		m, err := r.mount("--read", spec, fmt.Sprintf("read-%d", i+1), false)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	for i, spec := range r.Writes {
		m, err := r.mount("--write", spec, fmt.Sprintf("write-%d", i+1), true)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	if err := checkOverlaps(all); err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.Alias == "workspace" {
			continue
		}
		if err := checkTarget(m); err != nil {
			return nil, err
		}
		if err := r.checkReadable(m); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (r *Request) workspace() (*Mount, error) {
	dir, flag := r.Workspace, "--workspace"
	if dir == "" {
		dir, flag = r.Dir, "the current directory"
	}
	source := r.abs(dir)
	host, err := realPath(flag, source)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(host)
	if err != nil || !info.IsDir() {
		return nil, ui.Usage("--workspace: %s is no directory", source)
	}
	m := &Mount{Alias: "workspace", Source: source, Host: host, Target: WorkspaceTarget, Copy: true, Flag: flag}
	if host == "/" {
		return nil, ui.Fail("workspace_refused", "the whole file system is never copied into a sandbox",
			"cd to the project first, or: glove run --no-workspace -- COMMAND")
	}
	if home, err := filepath.EvalSymlinks(r.Home); err == nil && host == home && r.Workspace == "" {
		return nil, ui.Fail("workspace_refused",
			"the current directory is your home, which holds keys and credentials; it is not copied into a sandbox",
			"cd to the project first, or: glove run --workspace DIR -- COMMAND, or: glove run --no-workspace -- COMMAND")
	}
	return m, checkRestricted(m)
}

// mount reads HOST or HOST:TARGET.
func (r *Request) mount(flag, spec, alias string, copied bool) (*Mount, error) {
	source, target, given := strings.Cut(spec, ":")
	if source == "" || given && !ident.AbsPath(target) {
		return nil, usageNext(flag+" PATH, or "+flag+" PATH:/PLACE", "%s %q: the place inside is an absolute path", flag, spec)
	}
	source = r.abs(source)
	host, err := realPath(flag, source)
	if err != nil {
		return nil, err
	}
	if !given {
		target = filepath.Clean(source)
	}
	if host == "/" {
		return nil, ui.Fail("path_refused", flag+": the whole file system is never given to a session",
			"name what the command needs of it")
	}
	m := &Mount{Alias: alias, Source: source, Host: host, Target: target, Copy: copied, Flag: flag}
	return m, checkRestricted(m)
}

// checkTarget refuses the places that the sandbox keeps for itself.
func checkTarget(m *Mount) error {
	if inSystem(m.Target) {
		return ui.Fail("already_readable", m.Target+" belongs to the system, which every session can read already",
			"leave "+m.Flag+" out, or give another place: "+m.Flag+" "+m.Source+":/data")
	}
	for _, kept := range []string{"/etc", "/dev", "/proc", "/sys", policy.ServicesRoot} {
		if ident.Within(m.Target, kept) {
			return ui.Fail("reserved_target", "the sandbox has its own "+kept,
				m.Flag+" "+m.Source+":/data/"+filepath.Base(m.Source))
		}
	}
	for _, own := range []string{"/tmp", "/var/tmp", "/home/agent"} {
		if ident.Overlap(m.Target, own) {
			return ui.Fail("reserved_target", "the session has a "+own+" of its own, which nothing can be put into",
				m.Flag+" "+m.Source+":/data/"+filepath.Base(m.Source))
		}
	}
	return nil
}

// checkReadable finds out early that a root daemon's session, whose user is nobody on
// this machine, could not read what is bound.
func (r *Request) checkReadable(m *Mount) error {
	if !r.Root || m.Copy {
		return nil
	}
	info, err := os.Stat(m.Host)
	if err != nil {
		return ui.Failf("path_unusable", "%s %s: %w", m.Flag, m.Source, err)
	}
	need := fs.FileMode(0o004)
	if info.IsDir() {
		need = 0o005
	}
	if info.Mode()&need == need {
		return nil
	}
	return ui.Fail("not_readable_inside",
		fmt.Sprintf("%s has mode %04o, and as root each session runs as a user of its own, who cannot read it", m.Source, info.Mode().Perm()),
		"--write "+m.Source+" gives the session a copy, or chmod o+rX "+m.Source)
}

func checkRestricted(m *Mount) error {
	why, restricted := policy.RestrictedHostPath(m.Host)
	if !restricted {
		return nil
	}
	next := "name something below it that holds no credentials"
	if m.Alias == "workspace" {
		next = "cd to the project first, or: glove run --workspace DIR -- COMMAND, or: glove run --no-workspace -- COMMAND"
	}
	return ui.Fail("path_refused", m.Flag+": "+m.Host+" is never given to a session: "+why, next)
}

func checkOverlaps(all []*Mount) error {
	for i, a := range all {
		for _, b := range all[:i] {
			if ident.Overlap(a.Host, b.Host) {
				return overlap(a, b)
			}
			if ident.Overlap(a.Target, b.Target) {
				return ui.Fail("overlap", fmt.Sprintf("%s %s and %s %s would be at the same place inside", a.Flag, a.Source, b.Flag, b.Source),
					"give one another place: "+a.Flag+" "+a.Source+":/data")
			}
		}
	}
	return nil
}

func overlap(a, b *Mount) error {
	inner, outer := a, b
	if !ident.Within(a.Host, b.Host) {
		inner, outer = b, a
	}
	rel, _ := filepath.Rel(outer.Host, inner.Host) // both are absolute
	next := "it is at " + filepath.Join(outer.Target, rel) + " inside anyway; leave " + inner.Flag + " out"
	if inner.Alias == "workspace" {
		next = "add --no-workspace, or name less than " + outer.Source
	}
	return ui.Fail("overlap", fmt.Sprintf("%s (%s) lies within %s (%s)", inner.Host, inner.Flag, outer.Host, outer.Flag), next)
}

// measure adds up what is going to be copied.
func (m *Mount) measure(ctx context.Context) error {
	pinned, err := workspace.OpenPinned(m.Host)
	if err == nil {
		defer pinned.Close()
		m.bytes, m.entries, err = workspace.Measure(ctx, pinned)
	}
	if err == nil {
		return nil
	}
	failure := ui.Failf("copy_refused", "%s: %w", m.Source, err)
	failure.Err = err
	switch workspace.Code(err) {
	case workspace.CodeTooMany:
		failure.Message = fmt.Sprintf("%s has more than %d files", m.Source, workspace.MaxEntries)
		failure.Next = "run from a smaller directory, or bind it read-only: --no-workspace --read " + m.Source
	case workspace.CodeMount:
		failure.Next = "name directories on one file system"
	case workspace.CodeDenied:
		failure.Next = "you cannot read all of it yourself; name less"
	}
	return failure
}

func (r *Request) abs(path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.Dir, path)
	}
	return filepath.Clean(path)
}

func realPath(flag, path string) (string, error) {
	host, err := filepath.EvalSymlinks(path)
	var cause *fs.PathError
	switch {
	case err == nil:
		return host, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", ui.Fail("path_not_found", flag+": "+path+" does not exist", "")
	case errors.As(err, &cause):
		return "", ui.Failf("path_unusable", "%s: %s: %w", flag, path, cause.Err)
	}
	return "", ui.Failf("path_unusable", "%s: %s: %w", flag, path, err)
}

// systemTrees are the host's programs and libraries, which every session sees.
var systemTrees = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

func inSystem(path string) bool {
	return slices.ContainsFunc(systemTrees, func(tree string) bool { return ident.Within(path, tree) })
}

// executable reports whether the file can be run by this user.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}

func usageNext(next, format string, args ...any) error {
	failure := ui.Usage(format, args...)
	failure.Next = next
	return failure
}
