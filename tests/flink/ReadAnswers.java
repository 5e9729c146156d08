import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.rest.RestClient;
import org.apache.flink.runtime.rest.handler.async.AsynchronousOperationResult;
import org.apache.flink.runtime.rest.messages.ClusterOverviewHeaders;
import org.apache.flink.runtime.rest.messages.ConversionException;
import org.apache.flink.runtime.rest.messages.DashboardConfigurationHeaders;
import org.apache.flink.runtime.rest.messages.EmptyMessageParameters;
import org.apache.flink.runtime.rest.messages.EmptyRequestBody;
import org.apache.flink.runtime.rest.messages.JobExceptionsHeaders;
import org.apache.flink.runtime.rest.messages.JobIdsWithStatusesOverviewHeaders;
import org.apache.flink.runtime.rest.messages.JobMessageParameters;
import org.apache.flink.runtime.rest.messages.JobPlanHeaders;
import org.apache.flink.runtime.rest.messages.JobVertexDetailsHeaders;
import org.apache.flink.runtime.rest.messages.JobVertexMessageParameters;
import org.apache.flink.runtime.rest.messages.JobsOverviewHeaders;
import org.apache.flink.runtime.rest.messages.MessageHeaders;
import org.apache.flink.runtime.rest.messages.MessageParameters;
import org.apache.flink.runtime.rest.messages.ResponseBody;
import org.apache.flink.runtime.rest.messages.SubtasksTimesHeaders;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointConfigHeaders;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointMessageParameters;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointStatisticDetailsHeaders;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointStatistics;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointingStatistics;
import org.apache.flink.runtime.rest.messages.checkpoints.CheckpointingStatisticsHeaders;
import org.apache.flink.runtime.rest.messages.checkpoints.SubtaskCheckpointStatistics.CompletedSubtaskCheckpointStatistics;
import org.apache.flink.runtime.rest.messages.checkpoints.TaskCheckpointMessageParameters;
import org.apache.flink.runtime.rest.messages.checkpoints.TaskCheckpointStatisticsHeaders;
import org.apache.flink.runtime.rest.messages.checkpoints.TaskCheckpointStatisticsWithSubtaskDetails;
import org.apache.flink.runtime.rest.messages.job.JobDetailsHeaders;
import org.apache.flink.runtime.rest.messages.job.JobDetailsInfo;
import org.apache.flink.runtime.rest.messages.job.JobExecutionResultHeaders;
import org.apache.flink.runtime.rest.messages.job.JobExecutionResultResponseBody;
import org.apache.flink.runtime.rest.messages.job.JobStatusInfoHeaders;
import org.apache.flink.runtime.rest.messages.job.metrics.AggregatedJobMetricsHeaders;
import org.apache.flink.runtime.rest.messages.job.metrics.AggregatedTaskManagerMetricsHeaders;
import org.apache.flink.runtime.rest.messages.job.savepoints.SavepointInfo;
import org.apache.flink.runtime.rest.messages.job.savepoints.SavepointStatusHeaders;
import org.apache.flink.runtime.rest.messages.queue.QueueStatus;
import org.apache.flink.runtime.rest.messages.taskmanager.TaskManagerDetailsHeaders;
import org.apache.flink.runtime.rest.messages.taskmanager.TaskManagerInfo;
import org.apache.flink.runtime.rest.messages.taskmanager.TaskManagerMessageParameters;
import org.apache.flink.runtime.rest.messages.taskmanager.TaskManagersHeaders;
import org.apache.flink.runtime.rest.util.RestClientException;

/**
 * Reads the answers of a Tanist cluster with Flink's own REST client and message classes.
 *
 * <p>Arguments: host:port of a JobManager's REST server. Reads every job that the cluster lists, with its vertices and
 * checkpoints. Prints one line per answer; the exit status is 1 if any was refused. With a job and a trigger id: reads the
 * status of that savepoint; the exit status is 0 once it has ended. `cargo xtask flink` runs it.
 */
public final class ReadAnswers {
    private final RestClient client;
    private final URI server;
    private final List<String> refused = new ArrayList<>();

    private ReadAnswers(URI server) throws Exception {
        this.server = server;
        this.client = new RestClient(new Configuration(), Executors.newCachedThreadPool(ReadAnswers::daemon));
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    public static void main(String[] arguments) throws Exception {
        ReadAnswers reader = new ReadAnswers(URI.create("http://" + arguments[0]));
        if (arguments.length == 3) {
            System.exit(reader.readSavepoint(arguments[1], arguments[2]) ? 0 : 1);
        }
        reader.readCluster();
        reader.readJobs();
        System.out.println(reader.refused.isEmpty() ? "all answers were read" : reader.refused.size() + " refused");
        System.exit(reader.refused.isEmpty() ? 0 : 1);
    }

    private boolean readSavepoint(String job, String trigger) {
        var which = SavepointStatusHeaders.getInstance().getUnresolvedMessageParameters();
        resolve(which, job, trigger);
        var status = read("/jobs/:id/savepoints/:trigger", SavepointStatusHeaders.getInstance(), which);
        return status != null && status.queueStatus().getId() == QueueStatus.Id.COMPLETED;
    }

    private void readCluster() {
        read("/config", DashboardConfigurationHeaders.getInstance(), EmptyMessageParameters.getInstance());
        read("/overview", ClusterOverviewHeaders.getInstance(), EmptyMessageParameters.getInstance());
        read("/jobs", JobIdsWithStatusesOverviewHeaders.getInstance(), EmptyMessageParameters.getInstance());
        read("/jobs/metrics", AggregatedJobMetricsHeaders.getInstance(),
                AggregatedJobMetricsHeaders.getInstance().getUnresolvedMessageParameters());
        read("/taskmanagers/metrics", AggregatedTaskManagerMetricsHeaders.getInstance(),
                AggregatedTaskManagerMetricsHeaders.getInstance().getUnresolvedMessageParameters());
        var all = read("/taskmanagers", TaskManagersHeaders.getInstance(), EmptyMessageParameters.getInstance());
        for (TaskManagerInfo one : all == null ? List.<TaskManagerInfo>of() : all.getTaskManagerInfos()) {
            TaskManagerMessageParameters which = new TaskManagerMessageParameters();
            which.taskManagerIdParameter.resolve(one.getResourceId());
            read("/taskmanagers/:id", TaskManagerDetailsHeaders.getInstance(), which);
        }
    }

    private void readJobs() {
        var all = read("/jobs/overview", JobsOverviewHeaders.getInstance(), EmptyMessageParameters.getInstance());
        if (all == null) {
            return;
        }
        for (var job : all.getJobs()) {
            String of = " of " + job.getJobName() + ", " + job.getStatus();
            JobMessageParameters which = new JobMessageParameters();
            which.jobPathParameter.resolve(job.getJobId());
            var details = read("/jobs/:id" + of, JobDetailsHeaders.getInstance(), which);
            read("/jobs/:id/status" + of, JobStatusInfoHeaders.getInstance(), which);
            read("/jobs/:id/plan" + of, JobPlanHeaders.getInstance(), which);
            read("/jobs/:id/execution-result" + of, JobExecutionResultHeaders.getInstance(), which);
            var exceptions = JobExceptionsHeaders.getInstance();
            var limited = exceptions.getUnresolvedMessageParameters();
            limited.jobPathParameter.resolve(job.getJobId());
            read("/jobs/:id/exceptions" + of, exceptions, limited);
            readCheckpoints(of, which);
            for (var vertex : details == null ? List.<JobDetailsInfo.JobVertexDetailsInfo>of() : details.getJobVertexInfos()) {
                JobVertexMessageParameters where = new JobVertexMessageParameters();
                where.jobPathParameter.resolve(job.getJobId());
                where.jobVertexIdPathParameter.resolve(vertex.getJobVertexID());
                read("/jobs/:id/vertices/:id" + of, JobVertexDetailsHeaders.getInstance(), where);
                read("/jobs/:id/vertices/:id/subtasktimes" + of, SubtasksTimesHeaders.getInstance(), where);
            }
        }
    }

    /** The checkpoints of a job, each with its vertices and their subtasks; nothing if none are taken of it. */
    private void readCheckpoints(String of, JobMessageParameters which) {
        var statistics = new CheckpointingStatisticsHeaders();
        if (!has(statistics, which)) {
            return;
        }
        var all = read("/jobs/:id/checkpoints" + of, statistics, which);
        read("/jobs/:id/checkpoints/config" + of, CheckpointConfigHeaders.getInstance(), which);
        for (var one : all == null ? List.<CheckpointStatistics>of() : all.getHistory()) {
            var number = new CheckpointMessageParameters();
            resolve(number, which.jobPathParameter.getValue(), one.getId());
            String name = "/jobs/:id/checkpoints/details/" + one.getId();
            var details = read(name + of, CheckpointStatisticDetailsHeaders.getInstance(), number);
            if (details == null) {
                continue;
            }
            for (var vertex : details.getCheckpointStatisticsPerTask().keySet()) {
                var where = new TaskCheckpointMessageParameters();
                resolve(where, which.jobPathParameter.getValue(), one.getId(), vertex);
                read(name + "/subtasks/:id" + of, TaskCheckpointStatisticsHeaders.getInstance(), where);
            }
        }
    }

    /** Sets the parameters of a path, in their order. */
    private static void resolve(MessageParameters parameters, Object... values) {
        int next = 0;
        for (var parameter : parameters.getPathParameters()) {
            try {
                parameter.resolveFromString(String.valueOf(values[next++]));
            } catch (ConversionException wrong) {
                throw new IllegalArgumentException(wrong);
            }
        }
    }

    /** Whether the answer is not 404. */
    private <M extends MessageParameters, P extends ResponseBody> boolean has(
            MessageHeaders<EmptyRequestBody, P, M> headers, M parameters) {
        try {
            client.sendRequest(server.getHost(), server.getPort(), headers, parameters, EmptyRequestBody.getInstance())
                    .get(30, TimeUnit.SECONDS);
            return true;
        } catch (Exception failure) {
            return !(failure.getCause() instanceof RestClientException refusal)
                    || refusal.getHttpResponseStatus().code() != 404;
        }
    }

    private <M extends MessageParameters, P extends ResponseBody> P read(
            String name, MessageHeaders<EmptyRequestBody, P, M> headers, M parameters) {
        try {
            P answer = client.sendRequest(
                            server.getHost(), server.getPort(), headers, parameters, EmptyRequestBody.getInstance())
                    .get(30, TimeUnit.SECONDS);
            System.out.println("read     " + name + told(answer));
            return answer;
        } catch (Exception failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String text = String.valueOf(cause.getMessage()).lines().findFirst().orElse("");
            System.out.println("REFUSED  " + name + ": " + cause.getClass().getSimpleName() + ": " + text);
            refused.add(name);
            return null;
        }
    }

    /** The part of an answer that shows that it was understood. */
    private static String told(ResponseBody answer) {
        if (answer instanceof JobExecutionResultResponseBody body && body.getJobExecutionResult() != null) {
            var failure = body.getJobExecutionResult().getSerializedThrowable();
            return failure.map(it -> ": " + it.getMessage().lines().findFirst().orElse("")).orElse("");
        }
        if (answer instanceof CheckpointingStatistics body) {
            var latest = body.getLatestCheckpoints();
            var savepoint = latest.getSavepointStatistics();
            return ": " + body.getCounts().getNumberCompletedCheckpoints() + " completed"
                    + (savepoint == null ? "" : ", savepoint " + savepoint.getExternalPath());
        }
        if (answer instanceof CheckpointStatistics body) {
            return ": " + body.getStatus() + ", " + body.getNumAckSubtasks() + " of " + body.getNumSubtasks();
        }
        if (answer instanceof TaskCheckpointStatisticsWithSubtaskDetails body) {
            var subtasks = body.getSubtaskCheckpointStatistics();
            var told = subtasks.stream().filter(CompletedSubtaskCheckpointStatistics.class::isInstance).count();
            return ": " + told + " of " + subtasks.size() + " subtasks";
        }
        if (answer instanceof AsynchronousOperationResult<?> body) {
            var location = body.resource() instanceof SavepointInfo info ? info.getLocation() : "";
            return ": " + body.queueStatus().getId() + ": " + location;
        }
        return "";
    }
}
