package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A posture is what /proc tells of a process from outside.
type posture struct {
	Status      map[string]string
	Shared      []string          // namespaces that are the observer's, too
	Descriptors map[string]string // number to what it leads to
	Environment []string
	Limits      map[string]string // soft and hard, by the kernel's words
	Identities  string            // uid_map, then gid_map
	Places      string            // executable, current directory and root
	OOM         string
	Writable    []string // mount points
	Executable  []string // mount points besides the system's own
	Loose       []string // mounts without nosuid, with devices where none belong, or that propagate
	Ungrouped   []string // hierarchies that limit this session, in which the process is not in its group
}

// postureOf reads all of it.
func postureOf(t *testing.T, pid int, group string) (p posture) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return string(data)
	}
	link := func(name string) string {
		to, err := os.Readlink(filepath.Join(dir, name))
		must(t, err)
		return to
	}
	names := func(name string) (out []string) {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		must(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	p.Status = map[string]string{}
	for line := range strings.Lines(read("status")) {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains(postureFields, name) {
			p.Status[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	for _, ns := range names("ns") {
		if own, err := os.Readlink("/proc/self/ns/" + ns); err == nil && own == link("ns/"+ns) {
			p.Shared = append(p.Shared, ns)
		}
	}
	p.Descriptors = map[string]string{}
	for _, fd := range names("fd") {
		p.Descriptors[fd] = link("fd/" + fd)
	}
	p.Environment = strings.Split(strings.TrimSuffix(read("environ"), "\x00"), "\x00")
	p.Limits = limitsOf(read("limits"))
	p.Identities = strings.Join(strings.Fields(read("uid_map")+read("gid_map")), " ")
	p.Places = strings.Join([]string{link("exe"), link("cwd"), link("root")}, " ")
	p.OOM = strings.TrimSpace(read("oom_score_adj"))
	for line := range strings.Lines(read("mountinfo")) {
		p.mount(strings.Fields(line))
	}
	for line := range strings.Lines(read("cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, controller := range strings.Split(f[1], ",") {
			limiting := f[1] == "" && len(strings.Split(strings.TrimSpace(read("cgroup")), "\n")) == 1 ||
				slices.Contains([]string{"memory", "pids", "cpuacct"}, controller)
			if limiting && filepath.Base(f[2]) != group {
				p.Ungrouped = append(p.Ungrouped, line)
			}
		}
	}
	return p
}

var postureFields = []string{
	"Name", "Umask", "TracerPid", "Uid", "Gid", "Groups", "Threads", "SigBlk", "SigIgn", "SigCgt", "SigPnd",
	"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
}

// mount judges a line of mountinfo.
func (p *posture) mount(f []string) {
	point, options := f[4], strings.Split(f[5], ",")
	has := func(option string) bool { return slices.Contains(options, option) }
	device := strings.HasPrefix(point, "/dev/") && point != "/dev/shm"
	if !has("nosuid") || !has("nodev") && !device || device && !has("noexec") || f[6] != "-" {
		p.Loose = append(p.Loose, strings.Join(f, " "))
	}
	if !has("ro") {
		p.Writable = append(p.Writable, point)
	}
	top, _, _ := strings.Cut(point[1:], "/")
	if !has("noexec") && !slices.Contains([]string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"}, top) {
		p.Executable = append(p.Executable, point)
	}
	slices.Sort(p.Writable)
	slices.Sort(p.Executable)
}

// limitsOf leaves out what the host's own bounds decide.
func limitsOf(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		for _, name := range []string{"Max core file size", "Max stack size", "Max cpu time", "Max file size", "Max address space",
			"Max nice priority", "Max realtime priority"} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				f := strings.Fields(rest)
				out[name] = f[0] + " " + f[1]
			}
		}
	}
	return out
}

// TestPosture reads the harness of a managed session that runs, from outside, and compares
// all that /proc tells with what it must be.
func TestPosture(t *testing.T) {
	if mayRaiseLimits(t) {
		// As ulimit -c 0 leaves it. What a session may not have is not what its gloved had.
		var own unix.Rlimit
		must(t, unix.Getrlimit(unix.RLIMIT_CORE, &own))
		must(t, unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
		t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_CORE, &own)) })
	}
	w := newWorld(t, generous, "/bin/cat")
	w.trust()
	rec, err := w.start(w.create(w.grant("copy")))
	must(t, err)
	pid := int(rec.Process.PID)
	waitForRead(t, pid)
	got := postureOf(t, pid, rec.Monitor[locatorCgroup])
	const zero = "0000000000000000"
	user := got.Status["Uid"]
	id, _, _ := strings.Cut(user, " ")
	exe, err := filepath.EvalSymlinks("/bin/cat")
	must(t, err)
	want := posture{
		Status: map[string]string{
			"Name": "cat", "Umask": "0022", "TracerPid": "0", "Threads": "1", "Groups": got.Status["Groups"],
			"Uid": strings.TrimSpace(strings.Repeat(id+" ", 4)), "Gid": strings.TrimSpace(strings.Repeat(id+" ", 4)),
			"SigBlk": zero, "SigIgn": zero, "SigCgt": zero, "SigPnd": zero,
			"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero,
			"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1",
		},
		// No program inside has a use for clocks of its own; setting the clock needs what nobody there has.
		Shared:      []string{"time", "time_for_children"},
		Descriptors: map[string]string{"0": "/dev/pts/0", "1": "/dev/pts/0", "2": "/dev/pts/0"},
		Environment: append([]string{"GLOVE_SANDBOXED=1", "HOME=/home/agent"}, w.doc.RuntimeTemplates[0].Launch.Environment...),
		Limits: map[string]string{"Max core file size": "1 1", "Max stack size": "8388608 unlimited", "Max cpu time": "unlimited unlimited",
			"Max file size": "unlimited unlimited", "Max address space": "unlimited unlimited", "Max nice priority": "0 0", "Max realtime priority": "0 0"},
		Identities: fmt.Sprintf("1000 %s 1 1000 %s 1", id, id),
		Places:     exe + " /workspace /",
		OOM:        "500",
		Writable:   []string{"/dev/pts", "/dev/shm", "/home/agent", "/proc", "/tmp", "/var/tmp", "/workspace"},
		Executable: []string{"/dev/shm", "/home/agent", "/tmp", "/var/tmp", "/workspace"},
	}
	if os.Geteuid() == 0 {
		want.Status["Groups"] = ""
		if n, err := strconv.ParseUint(id, 10, 32); err != nil || uint32(n) < testUIDs.First || uint32(n) >= testUIDs.First+testUIDs.Count {
			t.Errorf("the session runs as host user %s, which is none of its range", id)
		}
	} else if id != strconv.Itoa(os.Geteuid()) {
		t.Errorf("the session runs as host user %s", id)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the harness (-want +got):\n%s", diff)
	}
	if _, err := w.Stop(t.Context(), "stop", rec.SessionID); err != nil {
		t.Error(err)
	}
	must(t, w.Settled(t.Context(), rec.SessionID))
}

// mayRaiseLimits tells whether what is lowered can be raised again.
func mayRaiseLimits(t *testing.T) bool {
	t.Helper()
	head, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	must(t, unix.Capget(&head, &data[0]))
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// waitForRead waits until a process reads its standard input: it is past its loader then.
func waitForRead(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	for ; ; <-tick.C {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		must(t, err)
		// The number of the call, and its first argument.
		now, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		must(t, err)
		if f := strings.Fields(string(now)); string(comm) == "cat\n" && len(f) > 1 && f[0] == strconv.Itoa(unix.SYS_READ) && f[1] == "0x0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q does not come to read: %s", comm, now)
		}
	}
}
