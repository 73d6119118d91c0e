package monitor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/safefile"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/quota"
	"gloved.dev/runtime/sandbox"
	"gloved.dev/runtime/sandbox/probe"
	"gloved.dev/runtime/sandbox/seccomp"
	"gloved.dev/runtime/workspace"
)

// MaxExecutable bounds the program that is hashed: 512 MiB.
const MaxExecutable = 512 << 20

// resources are what a session holds besides its processes. Whatever is in it
// exists; release undoes all of it, in any state of completeness.
type resources struct {
	log              *slog.Logger
	base             *base
	hostUID, hostGID uint32
	group            *cgroup.Group
	mechanisms       Mechanisms
	filesystems      []*quota.FS
	partitions       []Partition
	mounts           []sandbox.Mount
	pins             []*workspace.Pinned
	exe              *os.File
	profile          Profile
	profileDigest    string
}

// acquire makes everything the session needs before its first process. On an
// error nothing is left.
func acquire(ctx context.Context, spec *Spec, base *base, progress func(Progress), log *slog.Logger) (_ *resources, err error) {
	r := &resources{log: log, base: base}
	defer func() {
		if err != nil {
			r.release(log)
		}
	}()
	for _, step := range []struct {
		name string
		do   func(context.Context, *Spec, func(Progress)) error
	}{
		{"executable", r.openExecutable},
		{"user", r.claimUser},
		{"cgroup", r.takeGroup},
		{"filesystems", r.makeFilesystems},
		{"scratch", r.mountScratch},
		{"runtime_paths", r.bindRuntimePaths},
		{"grants", r.mountGrants},
	} {
		err := step.do(ctx, spec, progress)
		if err == nil {
			err = crashpoint.At(filepath.Dir(spec.Dir), crashpoint.Point("acquire."+step.name))
		}
		if err != nil {
			return nil, atStep(step.name, err)
		}
	}
	r.bind(spec)
	return r, nil
}

// atStep names the step that failed. The error number goes along for the
// operator; nothing is decided by error texts.
func atStep(name string, err error) error {
	e := &Error{Code: CodeSetup, Step: name, Detail: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Errno = uint32(errno)
	}
	return e
}

func (r *resources) openExecutable(ctx context.Context, spec *Spec, _ func(Progress)) error {
	fd, err := unix.Open(spec.Executable, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	r.exe = os.NewFile(uintptr(fd), "executable")
	id, err := safefile.Stat(r.exe)
	if err != nil {
		return err
	}
	switch {
	case id.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("the executable is not a regular file")
	case id.Mode&0o111 == 0:
		return errors.New("the executable has no execute permission")
	case id.Size > MaxExecutable:
		return errors.New("the executable is larger than 512 MiB")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, &contextReader{ctx, io.NewSectionReader(r.exe, 0, int64(id.Size))}); err != nil {
		return err
	}
	r.profile.Executable = executableIdentity(id, hex.EncodeToString(sum.Sum(nil)))
	return r.executableUnchanged()
}

// contextReader lets a long read be given up.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func executableIdentity(id safefile.Identity, sum string) ExecutableIdentity {
	return ExecutableIdentity{Dev: id.Dev, Ino: id.Ino, Mode: id.Mode, Size: id.Size,
		MtimeNS: id.MtimeNS, CtimeNS: id.CtimeNS, SHA256: sum}
}

// executableUnchanged compares the open executable with what was hashed.
func (r *resources) executableUnchanged() error {
	id, err := safefile.Stat(r.exe)
	if err != nil {
		return err
	}
	if executableIdentity(id, r.profile.Executable.SHA256) != r.profile.Executable {
		return errors.New("the executable changed while it was being read")
	}
	return nil
}

// claimUser takes the user that the base claimed; in an unprivileged daemon it is uid 0
// of the monitor's namespace, the daemon's own.
func (r *resources) claimUser(context.Context, *Spec, func(Progress)) error {
	tenant, err := r.base.user()
	r.hostUID, r.hostGID = tenant.HostUID, tenant.HostGID
	return err
}

// takeGroup takes over the control group that was made ahead, with the session's limits.
func (r *resources) takeGroup(_ context.Context, spec *Spec, _ func(Progress)) error {
	group, m, err := r.base.enclosure(cgroup.Limits{MemoryBytes: spec.Limits.MemoryBytes, PIDs: spec.Limits.PIDs})
	if err != nil {
		return err
	}
	r.group = group
	r.mechanisms = Mechanisms{CPUTime: m, Memory: m, PIDs: m, WallTime: "watchdog", Disk: "filesystem_quota", TerminalOutput: "byte_counter"}
	return nil
}

func (r *resources) makeFilesystems(_ context.Context, spec *Spec, _ func(Progress)) error {
	var grants []quota.Grant
	for _, g := range spec.Grants {
		if g.Copy {
			grants = append(grants, quota.Grant{Alias: g.Alias, Bytes: g.MaxBytes})
		}
	}
	plan, err := quota.Plan(spec.Limits.DiskBytes, grants)
	if err != nil {
		return err
	}
	for _, p := range plan {
		fs, err := quota.NewTmpfs(p, quota.Options{UID: r.hostUID, GID: r.hostGID, Mode: 0o700})
		if err != nil {
			return err
		}
		r.filesystems = append(r.filesystems, fs)
		r.partitions = append(r.partitions, Partition{Alias: p.Alias, Bytes: p.Bytes})
	}
	return nil
}

func (r *resources) filesystem(alias string) *quota.FS {
	for _, fs := range r.filesystems {
		if fs.Partition().Alias == alias {
			return fs
		}
	}
	return nil
}

// scratchDirs share the scratch partition, so that together they hold no more
// than it does. /dev/shm is among them: it is storage like any other.
var scratchDirs = []struct {
	name, target string
	mode         uint32
}{
	{"tmp", "/tmp", 0o1777},
	{"var-tmp", "/var/tmp", 0o1777},
	{"shm", "/dev/shm", 0o1777},
	{"agent-home", sandbox.InsideHome, 0o700},
}

func (r *resources) mountScratch(_ context.Context, _ *Spec, _ func(Progress)) error {
	scratch := r.filesystem(quota.Scratch)
	for _, d := range scratchDirs {
		mount, err := scratch.Sub(d.name, d.mode, r.hostUID, r.hostGID)
		if err != nil {
			return err
		}
		r.add(sandbox.Mount{Name: d.name, Target: d.target, FD: mount, Exec: true},
			ProfileMount{Alias: quota.Scratch, Target: d.target, Partition: quota.Scratch,
				QuotaBytes: scratch.Partition().Bytes, Writable: true, Directory: true})
	}
	return nil
}

func (r *resources) add(m sandbox.Mount, p ProfileMount) {
	r.mounts = append(r.mounts, m)
	r.profile.Mounts = append(r.profile.Mounts, p)
}

// pin opens a host object for as long as the session prepares.
func (r *resources) pin(path string) (*workspace.Pinned, error) {
	p, err := workspace.OpenPinned(path)
	if err != nil {
		return nil, err
	}
	r.pins = append(r.pins, p)
	return p, nil
}

// bindReadOnly makes a read-only mount of a pinned object.
func (r *resources) bindReadOnly(alias, target string, p *workspace.Pinned) error {
	mount, err := sandbox.OpenTree(p.File(), true)
	if err != nil {
		return err
	}
	r.add(sandbox.Mount{Name: alias, Target: target, FD: mount, ReadOnly: true, File: !p.IsDir(), Exec: true},
		ProfileMount{Alias: alias, Target: target, Directory: p.IsDir(), Source: sourceIdentity(p)})
	return nil
}

func sourceIdentity(p *workspace.Pinned) *SourceIdentity {
	id := p.Identity()
	return &SourceIdentity{Dev: id.Dev, Ino: id.Ino, Mode: id.Mode}
}

func (r *resources) bindRuntimePaths(_ context.Context, spec *Spec, _ func(Progress)) error {
	for _, path := range spec.ReadOnlyPaths {
		p, err := r.pin(path)
		if err != nil {
			return err
		}
		if err := r.bindReadOnly("__runtime_path", path, p); err != nil {
			return err
		}
	}
	// The executable comes after them: one of them may contain it, and what is
	// run must be the object that was hashed.
	mount, err := sandbox.OpenTree(r.exe, true)
	if err != nil {
		return err
	}
	r.add(sandbox.Mount{Name: "executable", Target: spec.Executable, FD: mount, ReadOnly: true, File: true, Exec: true},
		ProfileMount{Alias: "__executable", Target: spec.Executable,
			Source: &SourceIdentity{Dev: r.profile.Executable.Dev, Ino: r.profile.Executable.Ino, Mode: r.profile.Executable.Mode}})
	return nil
}

func (r *resources) mountGrants(ctx context.Context, spec *Spec, progress func(Progress)) error {
	report := throttle(progress)
	for _, g := range spec.Grants {
		p, err := r.pin(g.HostPath)
		if err != nil {
			return err
		}
		if *sourceIdentity(p) != g.Source {
			return errors.New("a granted object is not the one that was resolved")
		}
		if !g.Copy {
			err = r.bindGrant(ctx, g, p)
		} else {
			err = r.mountCopy(ctx, g, p, report)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bindGrant binds a granted object. The operator granted its content, but a
// root daemon's session runs as a user of its own: where the filesystem can,
// what belongs to the object's owner is shown as the session's, so that the
// session reads what the daemon could. Nothing becomes writable by it.
func (r *resources) bindGrant(ctx context.Context, g Grant, p *workspace.Pinned) error {
	if err := workspace.RefuseChannels(ctx, p); err != nil {
		return err
	}
	if err := r.bindReadOnly(g.Alias, g.Target, p); err != nil || r.base.claim == nil {
		return err
	}
	id, err := safefile.Stat(p.File())
	if err != nil {
		return err
	}
	if err := mapOwner(r.mounts[len(r.mounts)-1].FD, id.UID, id.GID, r.hostUID, r.hostGID); err != nil {
		r.log.Info("a grant keeps its owners", "alias", g.Alias, "reason", err)
	}
	return nil
}

// copyName is what a granted file is called on its partition.
const copyName = "file"

func (r *resources) mountCopy(ctx context.Context, g Grant, p *workspace.Pinned, report func(Progress)) error {
	fs := r.filesystem(g.Alias)
	name := ""
	if !p.IsDir() {
		name = copyName
	}
	_, err := workspace.CopyTree(ctx, p, fs.Dir(), workspace.CopyOptions{
		MaxBytes: g.MaxBytes, UID: int(r.hostUID), GID: int(r.hostGID), FileName: name,
		Progress: func(bytes, entries uint64) { report(Progress{Bytes: bytes, Entries: entries}) },
	})
	if err != nil {
		return err
	}
	if err := p.Verify(); err != nil {
		return err
	}
	m := sandbox.Mount{Name: g.Alias, Target: g.Target, FD: fs.Mount(), Exec: true}
	if !p.IsDir() {
		m.File = true
		if m.FD, err = fs.Part(copyName); err != nil {
			return err
		}
	}
	r.add(m, ProfileMount{Alias: g.Alias, Target: g.Target, Partition: g.Alias, QuotaBytes: g.MaxBytes,
		Writable: true, Directory: p.IsDir(), Source: sourceIdentity(p)})
	return nil
}

// throttle lets a report through ten times a second.
func throttle(report func(Progress)) func(Progress) {
	var last time.Time
	return func(p Progress) {
		if now := time.Now(); report != nil && now.Sub(last) >= 100*time.Millisecond {
			last = now
			report(p)
		}
	}
}

// bind derives the profile from what was acquired.
func (r *resources) bind(spec *Spec) {
	r.profile.ControllerPlanDigest = spec.ControllerPlanDigest
	r.profile.Limits = spec.Limits
	r.profile.Environment = spec.Environment
	r.profile.RuntimePaths = append(sandbox.DefaultSystemPaths(), spec.ReadOnlyPaths...)
	r.profile.Home = sandbox.InsideHome
	r.profile.WorkDir = spec.WorkDir
	r.profile.Argv = spec.Argv
	r.profile.SeccompDigest, r.profile.ProbeDigest = seccomp.Compile(seccomp.Policy{}).Digest(), probe.Digest()
	r.profileDigest = r.profile.Digest()
}

// reprove derives the profile once more, from the descriptors, and compares it
// with what gloved recorded: what is launched is what was bound.
func (r *resources) reprove(recorded string, spec *Spec) error {
	if err := r.executableUnchanged(); err != nil {
		return fault(CodeMismatch, "%v", err)
	}
	for _, p := range r.pins {
		if err := p.Verify(); err != nil {
			return fault(CodeMismatch, "%v", err)
		}
	}
	r.bind(spec)
	if r.profileDigest != recorded {
		return fault(CodeMismatch, "the profile is %s, recorded was %s", r.profileDigest, recorded)
	}
	return nil
}

func (r *resources) prepared() Prepared {
	id := r.group.Identity()
	return Prepared{
		ProfileDigest: r.profileDigest, CgroupName: r.group.Name(),
		Cgroup:     CgroupID{Dev: id.Dev, Ino: id.Ino, PathDigest: id.PathDigest},
		Partitions: r.partitions, Mechanisms: r.mechanisms,
	}
}

func (r *resources) sandboxConfig(spec *Spec) sandbox.Config {
	return sandbox.Config{
		Hostname: "session", Tenant: r.base.tenant,
		Argv: spec.Argv, Env: spec.Environment, WorkDir: spec.WorkDir, Mounts: r.mounts,
		Rows: spec.Rows, Cols: spec.Columns,
	}
}

// diskUse is what the session's filesystems hold now, in bytes, and whether one
// of them is full.
func (r *resources) diskUse() (sum uint64, full bool, err error) {
	for _, fs := range r.filesystems {
		u, err := fs.Usage()
		if err != nil {
			return sum, full, err
		}
		sum += u.UsedBytes
		full = full || u.Reason() != ""
	}
	return sum, full, nil
}

// release gives everything back and returns what would not go.
func (r *resources) release(log *slog.Logger) (quarantined []string) {
	ctx, cancel := context.WithTimeout(context.Background(), cgroup.DestroyBound+time.Second)
	defer cancel()
	if err := r.base.close(ctx); err != nil {
		log.Error("ground", "error", err)
		quarantined = append(quarantined, "user")
	}
	if r.group != nil {
		if err := r.group.Destroy(ctx); err != nil {
			log.Error("control group", "error", err)
			quarantined = append(quarantined, "cgroup:"+r.group.Name())
		}
		r.group.Close()
	}
	for _, m := range r.mounts {
		m.FD.Close() // some are the filesystems' own; closing twice is harmless
	}
	for _, fs := range r.filesystems {
		_ = fs.Close()
	}
	for _, p := range r.pins {
		_ = p.Close()
	}
	if r.exe != nil {
		r.exe.Close()
	}
	if len(quarantined) == 0 {
		r.base.free()
	}
	return quarantined
}
