//go:build !linux

package host

import (
	"context"
	"runtime"
)

func checks(context.Context) []Check {
	return []Check{{
		Code:     CodePlatform,
		Status:   Failed,
		Message:  "managed sessions need Linux; this is " + runtime.GOOS,
		Recovery: "run gloved on a Linux machine or in a Linux virtual machine",
	}}
}
