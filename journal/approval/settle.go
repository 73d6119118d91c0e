package approval

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// How long, and how often, a reader looks again at a tail that is not whole.
const (
	settleBound = 2 * time.Second // the public bound of a writer's wait
	settleEvery = 5 * time.Millisecond
)

// settle repeats look while it finds a torn tail that may be one in the making. A reader takes no lock,
// and the kernel shows it a record page by page while a writer writes it (a file of a local filesystem
// grows with each page that is copied). A tail that stays as it is while no writer has the lock is torn
// for good.
func settle(path string, look func() (torn bool)) {
	var last int64 = -1
	for left := settleBound / settleEvery; look() && left > 0; left-- {
		_, err := os.Lstat(path + ".lock")
		st, serr := os.Stat(path)
		if serr != nil || errors.Is(err, fs.ErrNotExist) && st.Size() == last {
			return
		}
		last = st.Size()
		<-time.After(settleEvery)
	}
}
