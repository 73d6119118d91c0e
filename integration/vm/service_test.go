package vm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

// serviceVariable tells the tests of the service in the guest whose systemd they are to
// have: serviceSystem, serviceUser, or none at all (serviceNone).
const (
	serviceVariable = "GLOVE_VM_SERVICE"
	serviceSystem   = "system"
	serviceUser     = "user"
	serviceNone     = "none"
	insideVariable  = "GLOVE_VM_SERVICE_INSIDE" // set where that systemd is the one at hand
	serviceBin      = "/opt/glove/bin"          // our programs in the guest
)

// systemdPrograms are what a guest needs of systemd; the last is of 254 and later.
var systemdPrograms = []string{"/usr/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/bin/systemd-run", "/usr/lib/systemd/systemd-executor"}

// TestService runs gloved as a service of this machine's own systemd in the guest, as a
// system service and as a user's, and without systemd in the group that DelegateSubgroup=
// makes: what may happen to gloved, sessions and their limits outlive.
func TestService(t *testing.T) {
	ownStage(t)
	prepare(t)
	files := systemdFiles(t)
	binary := build(t, "integration/vm")
	programs := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", programs, "./cmd/glove", "./cmd/gloved")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	const limit = 5 * time.Minute
	for _, kind := range []string{serviceSystem, serviceUser, serviceNone} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			args := []string{"./lane", "--timeout", seconds(limit), "--env", serviceVariable + "=" + kind,
				"--file", programs + ":" + serviceBin}
			for _, file := range files {
				args = append(args, "--file", file+":"+file)
			}
			args = append(args, "--", binary, "-test.v", "-test.timeout", (limit - grace).String(), "-test.run", "^TestServiceInGuest$")
			t.Logf("summary: gloved as a service, %s: %s", kind, new(execute(t, limit+grace, args)))
		})
	}
}

// systemdFiles are systemd's programs and the libraries they need.
func systemdFiles(t *testing.T) []string {
	t.Helper()
	require.Tool(t, "ldd")
	var files []string
	library := regexp.MustCompile(`(?m)^\s(?:\S+ => )?(/\S+) \(0x`)
	for _, program := range systemdPrograms {
		if !exists(program) {
			if strings.HasSuffix(program, "-executor") {
				continue
			}
			require.Skip(t, "systemd, of which "+program+" is not here")
		}
		out, err := exec.CommandContext(t.Context(), "ldd", program).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", program, err)
		}
		files = append(files, program)
		for _, match := range library.FindAllStringSubmatch(string(out), -1) {
			files = append(files, match[1])
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// TestServiceInGuest brings systemd up in the guest, as PID 1 of a namespace or as the
// manager of the user 1000, and goes on under it.
func TestServiceInGuest(t *testing.T) {
	inGuest(t)
	kind := os.Getenv(serviceVariable)
	switch kind {
	case serviceNone:
		outliveWithout(t)
		return
	case serviceSystem, serviceUser:
	default:
		t.Skip("TestService takes it there")
	}
	targets := map[string]string{serviceSystem: "/run/systemd/system", serviceUser: "/home/lane/.config/systemd/user"}[kind]
	for _, dir := range []string{"/run/systemd/system", targets} {
		fine(t, os.MkdirAll(dir, 0o755))
	}
	for _, target := range []string{"basic", "sysinit", "default", "multi-user", "shutdown"} {
		fine(t, os.WriteFile(filepath.Join(targets, target+".target"), []byte("[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n"), 0o644))
	}
	manager, enter, socket := systemManager(t)
	if kind == serviceUser {
		manager, enter, socket = userManager(t)
	}
	log, err := os.Create("/tmp/systemd.log")
	fine(t, err)
	defer log.Close()
	manager.Stdout, manager.Stderr = log, log
	fine(t, manager.Start())
	t.Cleanup(func() {
		_ = manager.Process.Kill() // the guest ends with this test anyway
		_ = manager.Wait()         // killed is how it ends
	})
	eventually(t, "systemd listens at "+socket, func() bool { return exists(socket) })
	self, err := os.Executable()
	fine(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	argv := append(enter(), self, "-test.v", "-test.run", "^TestServiceInside$")
	inside := exec.CommandContext(ctx, argv[0], argv[1:]...)
	inside.Env = append(manager.Env, insideVariable+"="+kind)
	out, err := inside.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "\n--- PASS: TestServiceInside") {
		t.Errorf("inside: %v\nsystemd said:\n%s", err, read(t, log.Name()))
	}
}

// systemManager is systemd as PID 1 of a namespace, and how to enter that.
func systemManager(t *testing.T) (manager *exec.Cmd, enter func() []string, socket string) {
	t.Helper()
	manager = exec.Command("/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--propagation", "slave",
		"/usr/lib/systemd/systemd", "--system", "--unit=basic.target", "--log-target=console")
	manager.Env = append(os.Environ(), "container=lane")
	enter = func() []string {
		task := manager.Process.Pid
		child := read(t, filepath.Join("/proc", itoa(task), "task", itoa(task), "children"))
		return []string{"/usr/bin/nsenter", "--target", strings.Fields(child)[0], "--pid", "--mount", "--"}
	}
	return manager, enter, "/run/systemd/private"
}

// userManager is the systemd of the user 1000 in a group that is delegated to it.
func userManager(t *testing.T) (manager *exec.Cmd, enter func() []string, socket string) {
	t.Helper()
	const scope, dir = "/sys/fs/cgroup/user.scope", "/run/user/1000"
	fine(t, os.MkdirAll(scope+"/top", 0o755))
	fine(t, os.WriteFile(scope+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0))
	fine(t, os.MkdirAll(dir, 0o700))
	for _, own := range []string{dir, "/home/lane", "/home/lane/.config", scope, scope + "/cgroup.procs", scope + "/cgroup.subtree_control",
		scope + "/top", scope + "/top/cgroup.procs", scope + "/top/cgroup.threads", scope + "/top/cgroup.subtree_control"} {
		fine(t, os.Chown(own, 1000, 1000))
	}
	fine(t, os.Chown("/home/lane/.config/systemd", 1000, 1000))
	fine(t, os.Chown("/home/lane/.config/systemd/user", 1000, 1000))
	drop := []string{"/usr/bin/setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"}
	manager = exec.Command("/bin/busybox", append([]string{"sh", "-c", `echo $$ >` + scope + `/top/cgroup.procs && exec "$@"`, "sh"},
		append(slices.Clone(drop), "/usr/lib/systemd/systemd", "--user", "--unit=basic.target", "--log-target=console")...)...)
	manager.Env = append(os.Environ(), "HOME=/home/lane", "USER=lane", "LOGNAME=lane", "XDG_RUNTIME_DIR="+dir)
	return manager, func() []string { return drop }, dir + "/systemd/private"
}
