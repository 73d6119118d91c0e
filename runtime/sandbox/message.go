package sandbox

import (
	"encoding/json"
	"errors"

	"gloved.dev/internal/strictjson"
)

func encode(m message) ([]byte, error) { return json.Marshal(m) }

func decode(data []byte) (message, error) {
	var m message
	err := strictjson.Decode(data, &m, strictjson.Limits{MaxBytes: maxMessage})
	return m, err
}

// newSpec is the part of a Config that crosses to init and launch.
func newSpec(c *Config) spec {
	s := spec{
		Hostname: c.Hostname, Argv: c.Argv, Env: c.Env, WorkDir: c.WorkDir,
		Rows: c.Rows, Cols: c.Cols, SystemPaths: c.SystemPaths,
		Loopback: c.Loopback, Mounts: make([]specMount, len(c.Mounts)),
	}
	if s.Hostname == "" {
		s.Hostname = "session"
	}
	if s.Rows == 0 || s.Cols == 0 {
		s.Rows, s.Cols = DefaultRows, DefaultCols
	}
	if s.SystemPaths == nil {
		s.SystemPaths = []string{}
	}
	if s.Env == nil {
		s.Env = []string{}
	}
	for i, m := range c.Mounts {
		s.Mounts[i] = specMount{Name: m.Name, Target: m.Target, ReadOnly: m.ReadOnly, File: m.File, Exec: m.Exec}
	}
	return s
}

func encodeSpec(s *spec) ([]byte, error) {
	data, err := json.Marshal(s)
	if err == nil && len(data) > maxSpec {
		err = errSpecTooLarge
	}
	return data, err
}

var errSpecTooLarge = errors.New("the serialized spec is too large")
