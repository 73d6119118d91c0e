//go:build !linux

package cgroup

func detect() (backend, error) {
	return nil, &Error{Code: CodeUnsupported, Op: "detect", Fix: "run managed sessions on Linux"}
}
