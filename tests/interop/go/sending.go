package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// manageTopics creates a topic at a broker, lists topics and queues, and deletes the topic.
func manageTopics(s setting) (seen, error) {
	a, err := admin.NewAdmin(admin.WithResolver(s.resolver()))
	if err != nil {
		return nil, err
	}
	defer a.Close()
	background := context.Background()
	err = a.CreateTopic(background, admin.WithTopicCreate(s.topic), admin.WithBrokerAddrCreate(s.broker))
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Second) // until the name server knows it
	listed := func() (bool, error) {
		all, err := a.FetchAllTopicList(background)
		if err != nil {
			return false, err
		}
		for _, topic := range all.TopicList {
			if topic == s.topic {
				return true, nil
			}
		}
		return false, nil
	}
	before, err := listed()
	if err != nil {
		return nil, err
	}
	queues, err := a.FetchPublishMessageQueues(background, s.topic)
	if err != nil {
		return nil, err
	}
	groups, err := a.GetAllSubscriptionGroup(background, s.broker, 3*time.Second)
	if err != nil {
		return nil, err
	}
	if err := a.DeleteTopic(background, admin.WithTopicDelete(s.topic), admin.WithBrokerAddrDelete(s.broker)); err != nil {
		return nil, err
	}
	after, err := listed()
	return seen{
		"created": before, "queues": len(queues), "groups": len(groups.SubscriptionGroupTable), "deleted": !after,
	}, err
}

// send uses every kind of send: synchronous, asynchronous, one-way, a batch and a compressed body.
func send(s setting) (seen, error) {
	p, err := s.producer(producer.WithCompressMsgBodyOverHowmuch(1024))
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	large := strings.Repeat("large ", 2000)
	got := waitingFor(3*s.count + 2 + 1)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		body := string(message.Body)
		if body == large {
			body = "large"
		}
		got.add(body)
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	if err := s.sendAll(p, "sync-", nil); err != nil {
		return nil, err
	}
	var calls sync.WaitGroup
	failures := make(chan error, s.count)
	for i := 0; i < s.count; i++ {
		calls.Add(1)
		message := primitive.NewMessage(s.topic, []byte(fmt.Sprintf("async-%d", i)))
		err := p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				failures <- err
			}
			calls.Done()
		}, message)
		if err != nil {
			return nil, err
		}
	}
	calls.Wait()
	for i := 0; i < s.count; i++ {
		message := primitive.NewMessage(s.topic, []byte(fmt.Sprintf("oneway-%d", i)))
		if err := p.SendOneWay(context.Background(), message); err != nil {
			return nil, err
		}
	}
	batch := []*primitive.Message{
		primitive.NewMessage(s.topic, []byte("batch-0")), primitive.NewMessage(s.topic, []byte("batch-1")),
	}
	result, err := p.SendSync(context.Background(), batch...)
	if err != nil {
		return nil, err
	}
	if _, err := p.SendSync(context.Background(), primitive.NewMessage(s.topic, []byte(large))); err != nil {
		return nil, err
	}
	complete := got.wait(s.wait)
	return seen{
		"complete": complete, "bodies": len(got.bodies()), "async_failures": len(failures),
		"batch_ids": len(strings.Split(result.OffsetMsgID, ",")),
	}, nil
}

// delay sends with delay level 1 (one second), timer with a number of milliseconds.
func delay(s setting) (seen, error) {
	return late(s, func(_ int, message *primitive.Message) { message.WithDelayTimeLevel(1) })
}

func timer(s setting) (seen, error) {
	return late(s, func(_ int, message *primitive.Message) { message.WithProperty("TIMER_DELAY_MS", "3000") })
}

func late(s setting, edit func(int, *primitive.Message)) (seen, error) {
	p, err := s.producer()
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	got := waitingFor(s.count)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(message.Body))
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	began := time.Now()
	if err := s.sendAll(p, "late-", edit); err != nil {
		return nil, err
	}
	sent := time.Now()
	complete := got.wait(s.wait)
	least, most := time.Hour, time.Duration(0)
	for _, at := range got.at {
		if after := at.Sub(began); after < least {
			least = after
		}
		if after := at.Sub(sent); after > most {
			most = after
		}
	}
	return seen{"complete": complete, "least_ms": least.Milliseconds(), "most_ms": most.Milliseconds()}, nil
}

// transaction commits, rolls back, and leaves messages to the check, a third each.
func transaction(s setting) (seen, error) {
	decisions := &decider{states: map[string]primitive.LocalTransactionState{}}
	p, err := rocketmq.NewTransactionProducer(
		decisions,
		producer.WithNsResolver(s.resolver()),
		producer.WithGroupName(s.group+"_tx"),
		producer.WithRetry(1),
	)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	defer p.Shutdown()
	committed := 0
	for i := 0; i < s.count; i++ {
		if i%3 != 1 {
			committed++
		}
	}
	got := waitingFor(committed)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(message.Body))
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	for i := 0; i < s.count; i++ {
		message := primitive.NewMessage(s.topic, []byte(fmt.Sprintf("%s-%d", []string{"commit", "rollback", "check"}[i%3], i)))
		if _, err := p.SendMessageInTransaction(context.Background(), message); err != nil {
			return nil, fmt.Errorf("send %d: %w", i, err)
		}
	}
	complete := got.wait(s.wait)
	rolledBack := 0
	for _, body := range got.bodies() {
		if strings.HasPrefix(body, "rollback") {
			rolledBack++
		}
	}
	decisions.mutex.Lock()
	defer decisions.mutex.Unlock()
	return seen{
		"complete": complete, "consumed": len(got.bodies()), "rolled_back": rolledBack, "checks": decisions.checks,
	}, nil
}

type decider struct {
	mutex  sync.Mutex
	states map[string]primitive.LocalTransactionState
	checks int
}

func (d *decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch strings.Split(string(message.Body), "-")[0] {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

func (d *decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.checks++
	return primitive.CommitMessageState
}
