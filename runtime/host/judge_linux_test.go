package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/cgroup"
	"golang.org/x/sys/unix"
)

// good is a machine that has everything.
func good() facts {
	api := map[string]error{}
	for _, n := range []string{"open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "mount_setattr"} {
		api[n] = nil
	}
	return facts{kernel: "6.1.0", cgroupMechanism: cgroup.MechanismV2, cgroupBase: "/glove", landlockABI: 2, mountAPI: api}
}

func TestJudgeGoodMachine(t *testing.T) {
	list := judge(good())
	for _, c := range list {
		if c.Status != Passed || c.Message == "" || c.Recovery != "" {
			t.Errorf("%+v", c)
		}
	}
	if err := Usable(list); err != nil {
		t.Error(err)
	}
}

func TestJudge(t *testing.T) {
	denied := &cgroup.Error{Code: cgroup.CodeNotDelegated, Op: "create_leaf", Name: "/user.slice/x", Fix: "FIX-IT", Err: unix.EACCES}
	missing := &cgroup.Error{Code: cgroup.CodeMissingController, Op: "read_controllers", Name: "memory", Fix: "BOOT-IT"}
	for _, tt := range []struct {
		name   string
		change func(*facts)
		code   string
		status Status
		words  []string // in the message
		fix    []string // in the recovery
	}{
		{"userns sysctl zero", func(f *facts) { f.userNS, f.sysctl.maxUserNS = unix.ENOSPC, "0" },
			CodeUserNamespaces, Failed, []string{"max_user_namespaces"}, []string{"sysctl -w user.max_user_namespaces="}},
		{"userns Debian switch", func(f *facts) { f.userNS, f.sysctl.userNSClone = unix.EPERM, "0" },
			CodeUserNamespaces, Failed, []string{"unprivileged_userns_clone"}, []string{"sysctl -w kernel.unprivileged_userns_clone=1"}},
		{"userns Debian switch does not bind root", func(f *facts) { f.root, f.userNS, f.sysctl.userNSClone = true, unix.EPERM, "0" },
			CodeUserNamespaces, Failed, []string{unix.EPERM.Error()}, []string{"outside a container"}},
		{"userns AppArmor", func(f *facts) { f.userNS, f.sysctl.apparmorUser = unix.EPERM, "1" },
			CodeUserNamespaces, Failed, []string{"AppArmor"}, []string{"apparmor_restrict_unprivileged_userns=0"}},
		{"userns too many", func(f *facts) { f.userNS = unix.ENOSPC },
			CodeUserNamespaces, Failed, []string{"too many"}, []string{"user.max_user_namespaces=15000"}},
		{"userns not built", func(f *facts) { f.userNS = unix.EINVAL },
			CodeUserNamespaces, Failed, nil, []string{"CONFIG_USER_NS=y"}},
		{"userns in a container", func(f *facts) { f.userNS, f.sysctl.inAContainer = unix.EPERM, true },
			CodeUserNamespaces, Failed, nil, []string{"--security-opt"}},
		{"other namespaces follow", func(f *facts) { f.userNS, f.pidNS = unix.EPERM, unix.EPERM },
			CodePIDNamespaces, Failed, nil, []string{CodeUserNamespaces}},
		{"pidns limit", func(f *facts) { f.pidNS = unix.ENOSPC },
			CodePIDNamespaces, Failed, nil, []string{"user.max_pid_namespaces="}},
		{"mntns limit", func(f *facts) { f.mountNS = unix.ENOSPC },
			CodeMountNamespaces, Failed, nil, []string{"user.max_mnt_namespaces="}},
		{"netns not built", func(f *facts) { f.netNS = unix.EINVAL },
			CodeNetworkNamespaces, Failed, nil, []string{"CONFIG_NAMESPACES=y"}},
		{"mntns AppArmor", func(f *facts) { f.mountNS, f.sysctl.apparmorUser = unix.EPERM, "1" },
			CodeMountNamespaces, Failed, nil, []string{"apparmor_restrict"}},
		{"other in a container", func(f *facts) { f.otherNS, f.sysctl.inAContainer = unix.EPERM, true },
			CodeOtherNamespaces, Failed, nil, []string{"--cap-add"}},
		{"cgroup fix passed on", func(f *facts) { f.cgroup = missing },
			CodeCgroups, Failed, []string{"missing_controller", "memory"}, []string{"BOOT-IT"}},
		{"cgroup not delegated, no systemd", func(f *facts) { f.cgroup = denied },
			CodeCgroups, Failed, []string{"/user.slice/x"}, []string{"FIX-IT"}},
		{"cgroup not delegated, systemd user", func(f *facts) { f.cgroup, f.sysctl.underSystemd = denied, true },
			CodeCgroups, Failed, nil, []string{"systemd-run --user --scope -p Delegate=yes", "loginctl enable-linger"}},
		{"cgroup untyped", func(f *facts) { f.cgroup = errors.New("odd") },
			CodeCgroups, Failed, []string{"odd"}, []string{"mount -t cgroup2"}},
		{"no seccomp", func(f *facts) { f.seccompFilter = unix.EINVAL },
			CodeSeccomp, Failed, nil, []string{"CONFIG_SECCOMP_FILTER"}},
		{"old seccomp", func(f *facts) { f.seccompActions = []string{"kill_process"} },
			CodeSeccomp, Failed, []string{"kill_process"}, []string{"kernel"}},
		{"landlock off", func(f *facts) { f.landlockErr = unix.EOPNOTSUPP },
			CodeLandlock, Warning, []string{"not enabled"}, []string{"lsm=landlock"}},
		{"landlock absent", func(f *facts) { f.landlockErr = unix.ENOSYS },
			CodeLandlock, Warning, nil, []string{"CONFIG_SECURITY_LANDLOCK"}},
		{"mount API partly", func(f *facts) { f.mountAPI["mount_setattr"], f.mountAPI["fsopen"] = unix.ENOSYS, unix.ENOSYS },
			CodeMountAPI, Failed, []string{"fsopen, mount_setattr"}, []string{"5.12"}},
		{"mount API unknown", func(f *facts) { f.mountAPI = nil },
			CodeMountAPI, Failed, nil, []string{"glove doctor"}},
		{"pidfd", func(f *facts) { f.pidfd = unix.ENOSYS }, CodePidfd, Failed, []string{"pidfd"}, []string{"kernel"}},
		{"pidfd filtered", func(f *facts) { f.pidfd, f.sysctl.inAContainer = unix.EPERM, true },
			CodePidfd, Failed, nil, []string{"--security-opt"}},
		{"memfd noexec", func(f *facts) { f.memfd, f.sysctl.memfdNoexec = unix.EACCES, "2" },
			CodeMemfd, Failed, nil, []string{"vm.memfd_noexec=1"}},
		{"memfd", func(f *facts) { f.memfd = unix.ENOSYS }, CodeMemfd, Failed, nil, []string{"kernel"}},
		{"openat2", func(f *facts) { f.openat2 = unix.ENOSYS }, CodeOpenat2, Failed, nil, []string{"kernel"}},
		{"pty", func(f *facts) { f.pty = unix.ENOENT }, CodePTY, Failed, nil, []string{"mount -t devpts"}},
		{"no mkfs", func(f *facts) { f.mkfs = fs.ErrNotExist }, CodeRetainedStorage, Warning, nil, []string{"e2fsprogs"}},
		{"bad mkfs", func(f *facts) { f.mkfs = errUntrusted }, CodeRetainedStorage, Warning, nil, []string{"chown root"}},
		{"loop denied", func(f *facts) { f.loop = unix.EACCES }, CodeRetainedStorage, Warning, nil, []string{"as root"}},
		{"no loop", func(f *facts) { f.loop = unix.ENOENT }, CodeRetainedStorage, Warning, nil, []string{"modprobe loop"}},
		{"no ssh", func(f *facts) { f.ssh = fs.ErrNotExist }, CodeSSH, Warning, nil, []string{"openssh-client"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := good()
			tt.change(&f)
			list := judge(f)
			var got Check
			for _, c := range list {
				if c.Code == tt.code {
					got = c
				}
			}
			if got.Status != tt.status {
				t.Errorf("%+v, want status %s", got, tt.status)
			}
			for _, w := range tt.words {
				if !strings.Contains(got.Message, w) {
					t.Errorf("message %q lacks %q", got.Message, w)
				}
			}
			for _, w := range tt.fix {
				if !strings.Contains(got.Recovery, w) {
					t.Errorf("recovery %q lacks %q", got.Recovery, w)
				}
			}
			if strings.Contains(got.Message+got.Recovery, "\n") {
				t.Errorf("more than a line: %+v", got)
			}
			err := Usable(list)
			if refused := err != nil; refused != (tt.status == Failed) {
				t.Errorf("Usable = %v with status %s", err, tt.status)
			}
			if err != nil && !strings.Contains(err.Error(), tt.code) {
				t.Errorf("refusal %q does not name %s", err, tt.code)
			}
		})
	}
}

func TestUsableFailsClosed(t *testing.T) {
	var typed *Error
	for _, list := range [][]Check{nil, {{Code: "x"}}, {{Code: "x", Status: "PASSED"}}} {
		if err := Usable(list); !errors.As(err, &typed) || typed.Code() != "host_unusable" || len(typed.Failed) == 0 {
			t.Errorf("Usable(%v) = %v, want a refusal", list, err)
		}
	}
}

func TestTryMkfs(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "mkfs.ext4")
	if err := tryMkfs([]string{name}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := os.WriteFile(name, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o775); err != nil {
		t.Fatal(err)
	}
	if err := tryMkfs([]string{name}); !errors.Is(err, errUntrusted) {
		t.Errorf("group-writable: %v", err)
	}
	require.Root(t)
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tryMkfs([]string{filepath.Join(dir, "none"), name}); err != nil {
		t.Errorf("good: %v", err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tryMkfs([]string{name}); !errors.Is(err, errUntrusted) {
		t.Errorf("not executable: %v", err)
	}
}
