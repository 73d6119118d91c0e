package rpc

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"gloved.dev/rpc/wire"
)

// A CapabilitySource is a Component that fills in members of capabilities other
// than methods, which the registry alone decides.
type CapabilitySource interface {
	Capabilities(*wire.Capabilities)
}

// A HealthSource is a Component that has a health. It appends to Components;
// the server derives Status.
type HealthSource interface {
	Health(context.Context, *wire.Health)
}

// A NotificationSource is a Component that sends notifications; they are stated
// in rpc.discover.
type NotificationSource interface {
	Notifications() []Notification
}

// A Notification is something the server sends unasked.
type Notification struct {
	Name, Summary string
	Params        reflect.Type
}

// NewNotification returns the Notification name with parameters of type P.
func NewNotification[P any](name, summary string) Notification {
	return Notification{Name: name, Summary: summary, Params: reflect.TypeFor[P]()}
}

var methodName = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?$`)

// A Registry is the union of the methods of components. It does not change.
type Registry struct {
	components    []Component
	methods       map[string]*Method
	names         []string // sorted, without notifications
	notifications []Notification
}

// NewRegistry returns the union of the components' methods and the four that
// every server has. A name that two bring, or that is no method name, is an
// error.
func NewRegistry(components ...Component) (*Registry, error) {
	r := &Registry{components: slices.Clone(components), methods: make(map[string]*Method)}
	for _, c := range append([]Component{&core{r}}, components...) {
		for _, m := range c.Methods() {
			if err := r.add(m); err != nil {
				return nil, err
			}
		}
		if s, ok := c.(NotificationSource); ok {
			r.notifications = append(r.notifications, s.Notifications()...)
		}
	}
	slices.Sort(r.names)
	slices.SortFunc(r.notifications, func(a, b Notification) int { return strings.Compare(a.Name, b.Name) })
	return r, nil
}

func (r *Registry) add(m Method) error {
	switch {
	case !methodName.MatchString(m.Name) || m.Name == wire.MethodRelay:
		return fmt.Errorf("rpc: %q is no method name", m.Name)
	case m.handle == nil:
		return fmt.Errorf("rpc: method %s was not made by NewMethod", m.Name)
	case r.methods[m.Name] != nil:
		return fmt.Errorf("rpc: two components bring the method %s", m.Name)
	}
	for _, code := range m.Errors {
		if code.Number() == 0 {
			return fmt.Errorf("rpc: method %s names the unknown error %w", m.Name, code)
		}
	}
	r.methods[m.Name] = &m
	if !m.Notification {
		r.names = append(r.names, m.Name)
	}
	return nil
}

// lookup returns the method that a peer of this kind may call.
func (r *Registry) lookup(name string, owner bool) *Method {
	m := r.methods[name]
	if m == nil || m.OwnerLocal && !owner {
		return nil
	}
	return m
}

// Methods returns the names of the methods a peer may call, sorted; owner says
// whether it is the owner.
func (r *Registry) Methods(owner bool) []string {
	out := make([]string, 0, len(r.names))
	for _, name := range r.names {
		if r.lookup(name, owner) != nil {
			out = append(out, name)
		}
	}
	return out
}

// Capabilities returns what a peer may use; owner says whether it is the owner.
func (r *Registry) Capabilities(owner bool) *wire.Capabilities {
	c := &wire.Capabilities{ManagedRuntimeIDs: []string{}, Backends: []wire.BackendCapability{}}
	for _, comp := range r.components {
		if s, ok := comp.(CapabilitySource); ok {
			s.Capabilities(c)
		}
	}
	slices.Sort(c.ManagedRuntimeIDs)
	c.Methods = r.Methods(owner)
	return c
}

// Health asks every component.
func (r *Registry) Health(ctx context.Context) *wire.Health {
	h := &wire.Health{SchemaVersion: 1, Status: wire.StatusReady, Components: []wire.ComponentHealth{}}
	for _, comp := range r.components {
		if s, ok := comp.(HealthSource); ok {
			s.Health(ctx, h)
		}
	}
	for _, c := range h.Components {
		if c.Status != wire.StatusReady {
			h.Status = wire.StatusDegraded
		}
	}
	return h
}
