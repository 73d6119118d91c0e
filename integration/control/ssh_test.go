package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
	"gloved.dev/rpc/client"
)

// sshHost is a real sshd on loopback and a client configuration that reaches it, and
// nothing of the user's own, under the name "gloved-host".
type sshHost struct {
	config string // for ssh -F
	dir    string
}

// argv is an ssh that runs a shell command there.
func (h *sshHost) argv(command string) []string {
	return []string{"ssh", "-F", h.config, "-T", "gloved-host", command}
}

func startSSHD(t *testing.T) *sshHost {
	t.Helper()
	sshd := require.Tool(t, "sshd")
	require.Tool(t, "ssh")
	keygen := require.Tool(t, "ssh-keygen")
	separationDirectory(t)
	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		out, err := exec.Command(keygen, "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	copyFile(t, filepath.Join(dir, "user.pub"), filepath.Join(dir, "authorized"))
	port := listenSSHD(t, sshd, dir)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "known"), fmt.Sprintf("[127.0.0.1]:%d %s", port, host))
	config := filepath.Join(dir, "ssh_config")
	write(t, config, fmt.Sprintf(`Host gloved-host
  HostName 127.0.0.1
  Port %d
  User %s
  IdentityFile %s
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile %s
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 20
  LogLevel ERROR
`, port, me.Username, filepath.Join(dir, "user"), filepath.Join(dir, "known")))
	return &sshHost{config: config, dir: dir}
}

// separationDirectory makes what sshd wants when it runs as root, and takes it away again
// if it was not there.
func separationDirectory(t *testing.T) {
	t.Helper()
	const path = "/run/sshd"
	if os.Geteuid() != 0 {
		return
	}
	err := os.Mkdir(path, 0o755)
	switch {
	case err == nil:
		t.Cleanup(func() {
			if err := os.Remove(path); err != nil {
				t.Errorf("%s was left behind: %v", path, err)
			}
		})
	case !errors.Is(err, fs.ErrExist):
		require.Skip(t, "sshd needs "+path+": "+err.Error())
	}
}

// listenSSHD starts sshd on a free port. Another process can take the port in between:
// then the next one is tried.
func listenSSHD(t *testing.T, sshd, dir string) int {
	t.Helper()
	for range 5 {
		port := freePort(t)
		config := filepath.Join(dir, "sshd_config")
		write(t, config, fmt.Sprintf(`ListenAddress 127.0.0.1
Port %d
HostKey %s
AuthorizedKeysFile %s
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
`, port, filepath.Join(dir, "host"), filepath.Join(dir, "authorized")))
		command := exec.Command(sshd, "-D", "-e", "-f", config)
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		said := watch(stderr, "Server listening")
		if <-said.found {
			t.Cleanup(func() {
				_ = command.Process.Kill() // it may have ended by itself
				text := <-said.rest
				_ = command.Wait() // killed
				if t.Failed() {
					t.Logf("sshd said\n%s", text)
				}
			})
			return port
		}
		text := <-said.rest
		if err := command.Wait(); err != nil && !strings.Contains(text, "Address already in use") {
			t.Fatalf("sshd: %v\n%s", err, text)
		}
	}
	t.Fatal("no port stayed free for sshd")
	return 0
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(data))
}

func TestFlowThroughSSH(t *testing.T) {
	host := startSSHD(t)
	s := newState(t)
	serve := strings.Join(append([]string{gloved(), "--stdio"}, s.full()...), " ")

	c, err := client.SpawnStdio(within(t, time.Minute), host.argv("exec "+serve), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	controlFlow(t, c)
	closed(t, c)

	t.Run("a banner before the first frame", func(t *testing.T) {
		_, err := client.SpawnStdio(within(t, time.Minute), host.argv("echo Welcome to the machine; exec "+serve), client.Options{})
		var foreign *client.NonProtocolError
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "Welcome to the machine") {
			t.Errorf("opening behind a banner = %v, want a NonProtocolError that shows it", err)
		}
	})
	t.Run("a gloved that does not start says why", func(t *testing.T) {
		_, err := client.SpawnStdio(within(t, time.Minute), host.argv("exec "+gloved()+" --stdio"), client.Options{})
		if err == nil || !strings.Contains(err.Error(), "--audit-key is missing") {
			t.Errorf("opening a gloved without a key = %v, want its own words", err)
		}
	})
	t.Run("glove rpc --ssh", func(t *testing.T) {
		// ssh takes no configuration from the environment; glove finds this one first.
		write(t, filepath.Join(host.dir, "ssh"), "#!/bin/sh\nexec "+require.Tool(t, "ssh")+" -F "+host.config+" \"$@\"\n")
		if err := os.Chmod(filepath.Join(host.dir, "ssh"), 0o700); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(glove(), "rpc", "--ssh", "gloved-host", "--remote-command", serve, "--json", "session_status", "session_id=flow")
		command.Env = append(os.Environ(), "PATH="+host.dir+":"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"session_id":"flow"`) {
			t.Errorf("glove rpc --ssh: %v\n%s", err, out)
		}
	})
}
