package sandbox

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// status reads the fields of /proc/PID/status asked for, blanks squeezed.
func status(t *testing.T, pid int, names ...string) map[string]string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains(names, name) {
			out[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return out
}

// TestPosture reads the live harness from outside and compares all of it.
func TestPosture(t *testing.T) {
	needRoom(t)
	s := start(t, config(t, "/bin/cat"))
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	// The terminal echoes the line and cat repeats it: by then cat is past its
	// loader and waits for more.
	if _, err := s.Terminal().WriteString("x\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s.Terminal(), make([]byte, len("x\r\nx\r\n"))); err != nil {
		t.Fatal(err)
	}
	pid := s.Launch().PID
	dir := "/proc/" + strconv.Itoa(pid)
	id := "0"
	if rootMode() {
		id = strconv.Itoa(testUID)
	}
	ids := strings.Join([]string{id, id, id, id}, " ")
	const zero = "0000000000000000"
	want := map[string]string{
		"Name": "cat", "Uid": ids, "Gid": ids, "Threads": "1",
		"SigBlk": zero, "SigIgn": zero, "SigCgt": zero, "SigPnd": zero, "Umask": "0022",
		"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero,
		"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1", "TracerPid": "0",
	}
	if rootMode() {
		want["Groups"] = ""
	}
	got := status(t, pid, slices.Collect(maps.Keys(want))...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("harness status (-want +got):\n%s", diff)
	}
	initWant := map[string]string{"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero, "NoNewPrivs": "1"}
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(s.Init().PID) + "/task/*")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("init's threads: %v", err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(initWant, status(t, tid, slices.Collect(maps.Keys(initWant))...)); diff != "" {
			t.Errorf("init thread %d (-want +got):\n%s", tid, diff)
		}
	}
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		inside, err := os.Readlink(dir + "/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		outside, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if inside == outside {
			t.Errorf("%s namespace is shared: %s", ns, inside)
		}
	}
	checkFiles(t, dir)
	checkMounts(t, dir)
	checkLimits(t, dir)
}

func checkFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		link, err := os.Readlink(dir + "/fd/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = link
	}
	want := map[string]string{"0": "/dev/pts/0", "1": "/dev/pts/0", "2": "/dev/pts/0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
	env, err := os.ReadFile(dir + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	wantEnv := strings.Join(config(t, "/x").Env, "\x00") + "\x00"
	if string(env) != wantEnv {
		t.Errorf("environment = %q, want %q", env, wantEnv)
	}
}

// checkMounts holds every mount to the rule for its place.
func checkMounts(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	writable := map[string]bool{"/tmp": true, "/var/tmp": true, InsideHome: true, shmTarget: true}
	executable := map[string]bool{"/tmp": true, "/var/tmp": true, InsideHome: true, "/usr": true}
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		point, options := f[4], strings.Split(f[5], ",")
		seen[point] = true
		has := func(o string) bool { return slices.Contains(options, o) }
		device := strings.HasPrefix(point, "/dev/") && point != shmTarget
		if !has("nosuid") || !device && !has("nodev") {
			t.Errorf("%s is mounted %s", point, f[5])
		}
		if !has("ro") && !writable[point] && point != "/proc" && point != "/dev/pts" {
			t.Errorf("%s is writable", point)
		}
		top := "/" + strings.SplitN(point, "/", 3)[1]
		if !has("noexec") && !executable[point] && !slices.Contains([]string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc"}, top) {
			t.Errorf("%s is executable", point)
		}
		if strings.Contains(line, " shared:") || strings.Contains(line, " master:") {
			t.Errorf("%s propagates: %s", point, line)
		}
	}
	for _, point := range []string{"/", "/usr", "/proc", "/proc/sys", "/dev/pts", "/dev/null", "/tmp", InsideHome} {
		if !seen[point] {
			t.Errorf("nothing is mounted at %s", point)
		}
	}
}

func checkLimits(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(dir + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	for _, want := range []string{
		"Max core file size 1 1 bytes", "Max open files 1024 ", "Max address space unlimited unlimited",
		"Max stack size 8388608 ", "Max nice priority 0 0", "Max realtime priority 0 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("limits lack %q:\n%s", want, data)
		}
	}
	score, err := os.ReadFile(dir + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(score)) != oomScore {
		t.Errorf("oom_score_adj = %s, want %s", score, oomScore)
	}
}
